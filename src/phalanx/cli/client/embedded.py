"""Find the control plane of a home, or start a detached one.

This module imports little, so that a new control plane starts while the rest of the command line loads.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from phalanx.errors import PermissionDenied, ServerError, ServerUnavailable
from phalanx.launch.files import distrusted, folder_identity, try_lock
from phalanx.launch.identity import ProcessIdentity

SERVER_FILE = "server.json"
SERVER_LOG = "server.log"
START_LOCK = "start.lock"
HOME_LOCK = "lock"
DATABASE_PLACE = "database"
"""Is there in the home of control planes on PostgreSQL, which share their lock."""
IDLE_EXIT_S = 60
START_LIMIT_S = 60.0
_POLL_S = 0.01
_SLOW_S = 2.0
# How long an address is awaited from a replica that lives.
_REPLICA_S = 6.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a control plane, and its process when known."""

    url: str
    token: str
    process: ProcessIdentity | None = None
    version: str = ""
    socket: str = ""
    ca: str = ""  # authority of its certificate, in PEM


def check_home(home: Path) -> None:
    """Refuse a home that another user owns or can write to: its files say where tokens are sent.

    Raises PermissionDenied.
    """
    for path in (home, home / SERVER_FILE):
        why = distrusted(path)
        if why:
            raise PermissionDenied(
                f"this home cannot be trusted: {why}",
                f"choose another --home, or give it to you alone: chmod -R go-w {home}",
            )


def find(home: Path) -> ServerAddress | None:
    """The live control plane of a home, from its server file; None when there is none.

    The server file of a copied home leads to the original's control plane, which is not that of the copy.
    Raises PermissionDenied for a home of another user.
    """
    check_home(home)
    try:
        data = json.loads((home / SERVER_FILE).read_bytes())
        process = ProcessIdentity(data["boot_id"], data["pid"], data["started_ticks"])
        found = ServerAddress(
            data["url"],
            data["token"],
            process,
            data["version"],
            _text(data, "socket"),
            _text(data, "ca"),
        )
        ours = _serves(home, data.get("home", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if ours and process.is_alive() else None


def _text(data: dict[str, Any], field: str) -> str:
    """An optional text of a server file; empty: none."""
    found = data.get(field, "")
    return found if isinstance(found, str) else ""


def _serves(home: Path, written: str) -> bool:
    """Whether a server file was written in this folder; an older release did not name the folder."""
    if written:
        return written == folder_identity(home)
    lock = try_lock(home / HOME_LOCK, fcntl.LOCK_SH, create=0)
    if lock is not None:
        os.close(lock)
    return lock is None


@dataclass(slots=True)
class StartingServer:
    """A control plane that is starting; `finish` waits until it answers."""

    home: Path
    child: subprocess.Popen[bytes]
    lock: IO[bytes]
    log_offset: int

    def finish(self, tell: Callable[[str], None]) -> ServerAddress:
        """Wait until it answers; a slow start is reported through `tell`.

        Raises ServerError with its own message when it exits instead, ServerUnavailable after a minute.
        """
        begun, told = time.monotonic(), False
        try:
            while True:
                found = find(self.home)
                if found is not None:
                    return found
                if self.child.poll() is not None:
                    raise ServerError(self._last_words(), f"log: {self.home / SERVER_LOG}")
                waited_s = time.monotonic() - begun
                if waited_s > START_LIMIT_S:
                    raise ServerUnavailable(
                        f"the control plane of {self.home} does not answer after {waited_s:.0f} s",
                        f"log: {self.home / SERVER_LOG}",
                    )
                if waited_s > _SLOW_S and not told:
                    tell(f"starting the control plane of {self.home} ...")
                    told = True
                time.sleep(_POLL_S)
        finally:
            self.lock.close()

    def _last_words(self) -> str:
        with open(self.home / SERVER_LOG, "rb") as log:
            log.seek(self.log_offset)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        said = next((line for line in reversed(lines) if line.startswith("phalanx: ")), None)
        if said is None:
            said = f"the control plane exited at once: {lines[-1] if lines else 'no output'}"
        return said.removeprefix("phalanx: ")


def begin(home: Path, num_slots: int | None = None) -> ServerAddress | StartingServer:
    """The control plane of a home, started when none runs; concurrent calls start only one.

    Raises ServerError when the home cannot be written, PermissionDenied when it is not this user's.
    """
    found = find(home)
    if found is not None:
        return found
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(home / START_LOCK, "ab")  # noqa: SIM115 (held until the server answers)
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise ServerError(
            f"{home} cannot be the home: {said}", "choose another one with --home"
        ) from None
    fcntl.flock(lock, fcntl.LOCK_EX)
    found = find(home) or _other_replica(home)
    if found is not None:
        lock.close()
        return found
    return _spawn(home, lock, num_slots)


def _other_replica(home: Path) -> ServerAddress | None:
    """A control plane that lives beside one that has just ended: it writes its address within seconds."""
    deadline = time.monotonic() + _REPLICA_S
    while (home / DATABASE_PLACE).exists() and time.monotonic() < deadline:
        found = find(home)
        if found is not None:
            return found
        lock = try_lock(home / HOME_LOCK)
        if lock is not None:
            os.close(lock)
            return None
        time.sleep(_POLL_S)
    return None


def _spawn(home: Path, lock: IO[bytes], num_slots: int | None) -> StartingServer:
    command = [sys.executable, "-m", "phalanx.standalone", "--home", str(home), "--detached"]
    command += ["--idle-exit-s", str(IDLE_EXIT_S)]
    if num_slots is not None:
        command += ["--slots", str(num_slots)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with open(os.open(home / SERVER_LOG, flags, 0o600), "ab") as log:
        offset = log.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # It must outlive this terminal, and its working directory must stay removable.
            start_new_session=True,
            cwd="/",
        )
    return StartingServer(home, child, lock, offset)


def wait_gone(process: ProcessIdentity, limit_s: float) -> bool:
    """Whether a process is gone within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def is_detached(process: ProcessIdentity) -> bool:
    """Whether a control plane was started by a verb, not with `phalanx up`."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        return b"--detached" in words
    return False
