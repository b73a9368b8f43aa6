"""Identities of processes that stay valid across restarts of the programs that store them."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from phalanx.launch import linux
from phalanx.launch.files import folder_identity, try_lock, write_file

ASSIGNMENT_NAME = "assignment.json"
RECORD_NAME = "supervisor.json"
LOCK_NAME = "lock"
DATA_LINKS = "data"
STAGED_SUFFIX = ".staged"
"""Of the file in which a staging program says what it has staged, after the name of its request."""
LOG_NAME = "supervisor.log"
EXIT_NAME = "exit.json"
TAG_VARIABLE = "PHALANX_SUPERVISOR"
# What a process has as its tag that forks supervisors: each of them puts its own digits in that place.
BLANK_TAG = "0" * 16


@cache
def boot_id() -> str:
    """This boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies one process for good: process numbers are reused, boot id and start time are not."""

    boot_id: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The name of a running process; None when there is none with that number."""
        one = linux.entry(pid)
        return None if one is None else cls(boot_id(), pid, one.start_ticks)

    def is_alive(self) -> bool:
        """Whether exactly this process still runs. A zombie does not."""
        if self.boot_id != boot_id():
            return False
        one = linux.entry(self.pid)
        return one is not None and not one.gone and one.start_ticks == self.start_ticks


@dataclass(frozen=True, slots=True)
class SupervisorRecord:
    """The file that a supervisor writes as soon as it holds its folder's lock.

    `tag` is in the environment of every process that it starts. The file also names its folder, so that
    the record in a copy of the folder never leads to the processes of the original.
    """

    supervisor: ProcessIdentity
    reaper: ProcessIdentity | None
    tag: str

    @property
    def marker(self) -> str:
        """How its processes are found in /proc."""
        return f"{TAG_VARIABLE}={self.tag}"

    def write(self, node_dir: Path) -> None:
        """Store it atomically."""
        body = {**asdict(self), "folder": folder_identity(node_dir)}
        write_file(node_dir / RECORD_NAME, json.dumps(body).encode())

    @classmethod
    def read(cls, node_dir: Path) -> SupervisorRecord | None:
        """The record in a folder; None when there is none, or one that was copied from another folder."""
        try:
            data: dict[str, Any] = json.loads((node_dir / RECORD_NAME).read_bytes())
            here = folder_identity(node_dir)
        except (FileNotFoundError, NotADirectoryError):
            return None
        # Older supervisors did not name their folder.
        if data.get("folder", here) != here:
            return None
        # Older supervisors wrote `guard`.
        reaper = data.get("reaper", data.get("guard"))
        return cls(
            supervisor=ProcessIdentity(**data["supervisor"]),
            reaper=None if reaper is None else ProcessIdentity(**reaper),
            tag=data["tag"],
        )


def is_held(node_dir: Path) -> bool:
    """Whether a supervisor holds the lock of this folder: it does for as long as it lives."""
    try:
        descriptor = try_lock(node_dir / LOCK_NAME, fcntl.LOCK_SH, create=0)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def this_process() -> ProcessIdentity:
    """The name of the calling process."""
    name = ProcessIdentity.of(os.getpid())
    assert name is not None
    return name
