"""`python -m phalanx.standalone.backup --home H backup|restore FOLDER`: copies of database and keys.

A backup may be made while the control plane runs and jobs are submitted: SQLite copies a consistent state.
Packed output is copied too. Checkpoints, code and the supervisors' log files are not part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx import __version__
from phalanx.errors import Conflict, NotFound, PlatformError, ServerError, UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.units import format_size, to_rfc3339
from phalanx.launch.files import write_file
from phalanx.schemas.home import HomeLayout
from phalanx.standalone.home import HomeLock, prepare_home
from phalanx.store import migrate
from phalanx.store.engines import sqlite_file

_ABOUT = "backup.json"
_DATABASE = "phalanx.sqlite"
_FILES = ("VERSION", "token", "key", "secrets.key")
_FOLDERS = ("pools", "secrets", "tls")
_PAGES = 1024


def back_up(home: HomeLayout, target: Path) -> dict[str, object]:
    """Copy the database, the keys, the pools and the secrets of a home into a new folder.

    Raises NotFound without a SQLite database, Conflict for a folder that exists, StoreCorrupt, OSError.
    """
    if not home.database_file.exists():
        raise NotFound(
            f"{home.root} has no SQLite database",
            "back up PostgreSQL with pg_dump, and the files by hand",
        )
    if target.exists():
        raise Conflict(f"{target} exists", "name a new folder")
    partial = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    try:
        about = _copy_database(home.database_file, partial / _DATABASE)
        for name in _FILES:
            with contextlib.suppress(FileNotFoundError):
                write_file(partial / name, (home.root / name).read_bytes())
        for name in _FOLDERS:
            if (home.root / name).is_dir():
                shutil.copytree(home.root / name, partial / name)
        # After the database: the files of every pack that the copy names exist by then.
        _copy_packs(home, partial)
        about |= {"version": __version__, "home": str(home.root)}
        about["at"] = to_rfc3339(SystemClock().now())
        write_file(partial / _ABOUT, json.dumps(about, indent=2).encode())
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return about


def _copy_packs(home: HomeLayout, target: Path) -> None:
    """Copy packed output into another home or backup; what retention deletes meanwhile is left out."""
    for path in sorted(home.logs_dir.glob("*/*")):
        to = HomeLayout(target).logs_dir / path.parent.name / path.name
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            write_file(to, path.read_bytes())


def _copy_database(source: Path, target: Path) -> dict[str, object]:
    """A consistent copy, checked; the facts about it."""
    write_file(target, b"")  # with mode 0600 from the beginning
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as live,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy, pages=_PAGES)
        copy.execute("PRAGMA journal_mode=DELETE")
        facts = {
            "schema": copy.execute("SELECT version_num FROM alembic_version").fetchone()[0],
            "jobs": copy.execute("SELECT count(*) FROM jobs").fetchone()[0],
        }
    sqlite_file.check(target)
    return facts


def restore(source: Path, root: Path, *, force: bool) -> Path | None:
    """Put a backup into a home without a running control plane; returns where an earlier database went.

    Jobs that the backup does not know keep their folders, and new jobs get numbers above theirs. Raises
    NotFound, Conflict while a control plane runs or when the home has a database, ServerError, OSError.
    """
    about = _about(source)
    sqlite_file.check(source / _DATABASE)
    home = prepare_home(root)
    lock = HomeLock(home)
    lock.take(SystemClock(), 0.0)
    try:
        aside = _set_aside(home, force)
        for name in _FILES:
            if (source / name).exists():
                write_file(home.root / name, (source / name).read_bytes())
        for name in _FOLDERS:
            if (source / name).is_dir():
                shutil.rmtree(home.root / name, ignore_errors=True)
                shutil.copytree(source / name, home.root / name)
        # Packs have names of their own: those of an earlier database stay with it.
        _copy_packs(HomeLayout(source), home.root)
        write_file(home.database_file, (source / _DATABASE).read_bytes())
    finally:
        lock.release()
    print(f"restored the backup of {about['at']}: {about['jobs']} jobs", flush=True)  # noqa: T201
    return aside


def _about(source: Path) -> dict[str, object]:
    try:
        about: dict[str, object] = json.loads((source / _ABOUT).read_bytes())
        schema, _, _ = str(about["schema"]), about["at"], about["jobs"]
    except (OSError, ValueError, KeyError, TypeError):
        raise NotFound(f"{source} is not a backup", "`phalanx admin backup` makes one") from None
    if schema > migrate.HEAD:
        raise ServerError(
            f"{source} has schema {schema}, this release reads up to {migrate.HEAD}",
            "restore it with the release that wrote it",
        )
    return about


def _set_aside(home: HomeLayout, force: bool) -> Path | None:
    """Move the database of a home away, with the files that SQLite keeps beside it."""
    folder = home.database_file.parent
    if not home.database_file.exists():
        return None
    if not force:
        raise Conflict(
            f"{home.root} has a database",
            "add --force: the database is kept beside the restored one",
        )
    aside = folder.with_name(f"{folder.name}.before-{SystemClock().now()}")
    folder.rename(aside)
    folder.mkdir(mode=0o700)
    return aside


def main(argv: Sequence[str] | None = None) -> int:
    """Make or restore a backup. Exit code 1 with a message when that is not possible."""
    parser = argparse.ArgumentParser(prog="phalanx.standalone.backup")
    parser.add_argument("--home", required=True, type=Path)
    parser.add_argument("action", choices=("backup", "restore"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--force", action="store_true")
    given = parser.parse_args(argv)
    try:
        if given.action == "backup":
            about = back_up(HomeLayout(given.home.absolute()), given.folder)
            size = format_size((given.folder / _DATABASE).stat().st_size)
            print(f"{given.folder}: {about['jobs']} jobs, {size}", flush=True)  # noqa: T201
        else:
            aside = restore(given.folder, given.home, force=given.force)
            if aside is not None:
                print(f"the database before it is in {aside}", flush=True)  # noqa: T201
    except (PlatformError, OSError, sqlite3.Error) as error:
        failed = error if isinstance(error, PlatformError) else UserError(str(error))
        hint = f"\n  {failed.hint}" if failed.hint else ""
        print(f"phalanx: {failed.message}{hint}", file=sys.stderr, flush=True)  # noqa: T201
        return failed.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
