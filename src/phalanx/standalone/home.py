"""Preparing a home directory and holding it for one control plane at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import IO

from phalanx.errors import Conflict, ServerError
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.launch.files import write_file
from phalanx.schemas.home import HOME_VERSION, HomeLayout
from phalanx.server.app import derived_key
from phalanx.store.engines.postgresql import without_password

_FOLDERS = ("db", "jobs", "code", "checkpoints")
_SETUP_LOCK = "setup.lock"
_POLL_S = 0.02
MAX_LOG_BYTES = 4 * 2**20


def prepare_home(root: Path) -> HomeLayout:
    """Create what is missing under `root`, with mode 0700.

    Raises ServerError when it cannot be used as a home: not a folder, not ours, not writable, or
    written by another version.
    """
    home = HomeLayout(root.absolute())
    try:
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(home.root)
        home.root.chmod(0o700)
        # Replicas that start at the same time must get the same token.
        with open(home.root / _SETUP_LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name in _FOLDERS:
                (home.root / name).mkdir(mode=0o700, exist_ok=True)
            _check_version(home)
            _make_token(home)
    except OSError as error:
        raise _unusable(home.root, error) from error
    return home


def _unusable(root: Path, error: OSError) -> ServerError:
    if error.errno == errno.ENOSPC:
        return ServerError(
            f"{root}: no space left on the disk", "free some space, or choose another --home"
        )
    said = (error.strerror or str(error)).lower()
    return ServerError(f"{root} cannot be the home: {said}", "choose another one with --home")


def _check_owner(root: Path) -> None:
    if root.stat().st_uid != os.geteuid():
        raise ServerError(f"{root} belongs to another user", "choose another one with --home")


def _check_version(home: HomeLayout) -> None:
    try:
        found = home.version_file.read_text().strip()
    except FileNotFoundError:
        write_file(home.version_file, f"{HOME_VERSION}\n".encode())
        return
    if found != HOME_VERSION:
        raise ServerError(
            f"{home.root} has format {found[:20]!r}, this program reads {HOME_VERSION!r}",
            "use the version of Phalanx that wrote it, or choose another --home",
        )


def _make_token(home: HomeLayout) -> None:
    """The token is kept over restarts, so that supervisors and bookmarks stay valid."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_IMODE(home.token_file.stat().st_mode) & 0o077:
            home.token_file.chmod(0o600)
        if home.token_file.read_text().strip():
            return
    write_file(home.token_file, f"{random_hex(48)}\n".encode())


def read_key(home: HomeLayout) -> bytes:
    """The key of supervisor tokens. In a home of an older release it is the one derived from the token.

    It outlives the token, so that its rotation leaves running supervisors alone. Raises ServerError.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            return bytes.fromhex(home.key_file.read_text().strip())
        except ValueError:
            raise ServerError(f"{home.key_file} does not hold a key", "put a backup back") from None
    key = derived_key(read_token(home))
    write_file(home.key_file, f"{key.hex()}\n".encode())
    return key


def read_token(home: HomeLayout) -> str:
    """The bearer token of a prepared home."""
    return home.token_file.read_text().strip()


def remember_database(home: HomeLayout, url: str | None) -> None:
    """Note that a home uses PostgreSQL: a start without the URL must not begin an empty SQLite file.

    Raises ServerError for such a start, and for PostgreSQL where the jobs of the home are still in SQLite.
    """
    try:
        known = home.database_place.read_text().strip()
    except FileNotFoundError:
        known = ""
    if url is None:
        if known:
            raise ServerError(
                f"{home.root} uses the database {known}",
                "set PHALANX__DATABASE__URL or --database-url; to leave that database for good, "
                f"delete {home.database_place}",
            )
        return
    if home.database_file.exists():
        raise ServerError(
            f"{home.root} has jobs in SQLite, which another database would not show",
            "move them with `phalanx admin import-home --database-url URL`, or choose another --home",
        )
    place = without_password(url)
    if known != place:
        write_file(home.database_place, f"{place}\n".encode())


class HomeLock:
    """The lock of the control plane of a home; the kernel releases it when the process ends.

    One on SQLite has it alone. Replicas on PostgreSQL share it.
    """

    def __init__(self, home: HomeLayout) -> None:
        self._path = home.lock_file
        self._file: IO[bytes] | None = None

    def take(self, clock: Clock, wait_s: float, how: int = fcntl.LOCK_EX) -> None:
        """Lock the home, alone or with LOCK_SH, waiting for a control plane that is just leaving.

        Raises Conflict when another one still holds it after `wait_s` seconds.
        """
        self._file = open(self._path, "ab")  # noqa: SIM115 (held for as long as we live)
        deadline = clock.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._file, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if clock.monotonic() >= deadline:
                    self.release()
                    raise Conflict(
                        f"a control plane of {self._path.parent} is running already",
                        "use it, or choose another --home",
                    ) from None
            time.sleep(_POLL_S)

    def release(self) -> None:
        """Release the lock; does nothing when it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def rotate_log(path: Path) -> None:
    """Rename a log of more than `MAX_LOG_BYTES` to `<name>.1`; the next start begins a new one."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.rename(path.with_name(path.name + ".1"))
