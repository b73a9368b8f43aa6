"""`python -m phalanx.standalone.import_home --home H --database-url URL`: from SQLite to PostgreSQL.

The home keeps its tokens, code, secrets, checkpoints and logs; the SQLite file is kept beside them. With
`--objects` checkpoints, code and traces are copied into an object store as well.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.core.training.checkpoints import far_prefix
from phalanx.errors import NotFound, PlatformError, UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.units import format_size
from phalanx.schemas.home import HomeLayout
from phalanx.server.settings import DatabaseSettings, hide_secret_settings, read_settings
from phalanx.standalone.control_plane import refuse_password
from phalanx.standalone.home import HomeLock, remember_database
from phalanx.standalone.import_objects import CopiedKind, ObjectImport
from phalanx.store import open_store
from phalanx.store.engines.postgresql import without_password
from phalanx.store.transfer import CopiedTable, copy_database


def import_home(home: HomeLayout, url: str) -> tuple[list[CopiedTable], Path]:
    """Copy the database of a home; returns what was copied, and where the SQLite file went.

    All or nothing: the rows are one transaction, and the home changes after it. After a crash, a repetition
    does what is left. Raises NotFound without a SQLite file, Conflict while a control plane runs or where
    the target has other rows, and what `open_store` raises.
    """
    if not home.database_file.exists():
        said = f"{home.root} has no SQLite database"
        known = home.database_place.exists()
        raise NotFound(said, "it was moved before" if known else "name another home with --home")
    lock = HomeLock(home)
    lock.take(SystemClock(), 0.0)
    try:
        open_store(home.database_file).close()  # brings it to this release's schema
        target = open_store(url)
        try:
            copied = copy_database(home.database_file, target)
        finally:
            target.close()
        folder = home.database_file.parent
        aside = folder.with_name(f"{folder.name}.imported-{SystemClock().now()}")
        folder.rename(aside)
        folder.mkdir(mode=0o700)
        remember_database(home, url)
    finally:
        lock.release()
    return copied, aside


def _url(given: str | None) -> str:
    if given is not None:
        refuse_password(given)
        settings = DatabaseSettings(url=given)
    else:
        settings = read_settings().database
    hide_secret_settings()
    url = settings.resolved()
    if url is None:
        raise UserError(
            "no database is named", "give --database-url, or set PHALANX__DATABASE__URL"
        )
    return url


def main(argv: Sequence[str] | None = None) -> int:
    """Move the database and print each table. Exit code 1 with a message when that is not possible."""
    parser = argparse.ArgumentParser(prog="phalanx.standalone.import_home")
    parser.add_argument("--home", required=True, type=Path)
    parser.add_argument("--database-url", default=None)
    parser.add_argument("--objects", default=None)
    given = parser.parse_args(argv)
    home = HomeLayout(given.home.absolute())
    try:
        url = _url(given.database_url)
        prefix = None if given.objects is None else _prefix(given.objects)
        moved = None if _is_moved(home, prefix) else import_home(home, url)
        files = [] if prefix is None else import_files(home, prefix)
    except (PlatformError, OSError) as error:
        failed = error if isinstance(error, PlatformError) else UserError(str(error))
        hint = f"\n  {failed.hint}" if failed.hint else ""
        print(f"phalanx: {failed.message}{hint}", file=sys.stderr, flush=True)  # noqa: T201
        return failed.exit_code
    if moved is not None:
        _tell_rows(*moved, url)
    for kind in files:
        bad = f", {kind.bad} left in the home" if kind.bad else ""
        said = f"{kind.files} copied ({format_size(kind.size_bytes)}), {kind.known} known{bad}"
        _say(f"{kind.kind}: {said}; every byte was read back and compared.")
    start = "" if prefix is None else f"PHALANX__STORAGE__OBJECTS={prefix} "
    _say(f"Start with: {start}phalanx up --database-url …")
    return 0


def import_files(home: HomeLayout, url: str) -> list[CopiedKind]:
    """Copy the files of a home into an object store, while no control plane runs. Raises Conflict."""
    lock = HomeLock(home)
    lock.take(SystemClock(), 0.0)
    try:
        return ObjectImport(home, url, dict(os.environ), _say).run()  # noqa: TID251 - credentials
    finally:
        lock.release()


def _prefix(url: str) -> str:
    try:
        return far_prefix(url)
    except ValueError as error:
        raise UserError(f"--objects {error}") from None


def _is_moved(home: HomeLayout, prefix: str | None) -> bool:
    """Whether the rows were moved by an earlier call, and this one only goes on with the files."""
    return prefix is not None and not home.database_file.exists() and home.database_place.exists()


def _tell_rows(copied: list[CopiedTable], aside: Path, url: str) -> None:
    width = max(len(one.name) for one in copied)
    for one in copied:
        _say(f"{one.name:<{width}}  {one.rows:>9} rows  {one.digest}")
    total = sum(one.rows for one in copied)
    _say(f"{total} rows are in {without_password(url)}, counts and digests compared.")
    _say(f"The SQLite file is kept in {aside}.")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
