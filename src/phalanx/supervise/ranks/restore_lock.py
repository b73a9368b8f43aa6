"""A lock for nodes that share a checkpoint folder: the first one restores it, the others read its result.

The lock is a hidden file in the working directory of the ranks, which afterwards holds the generation and
the result; the folder itself belongs to the script, which may take its existence for a saved state. Without
the lock a node that is late would overwrite files that ranks of other nodes are already writing. The kernel
releases the lock when a process dies.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.checkpoint.folders import Stat

MARK = ".phalanx-put-back"
"""The beginning of the name of a lock file."""
_WAIT_S = 0.1
# File systems that know no locks: what is left is the file itself.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored: the checkpoint's path and step, the files, and bad checkpoints with reasons.

    `foreign`: the checkpoint is one of another job, from which this one begins.
    """

    path: str | None
    step: int
    stats: dict[str, Stat]
    bad: Sequence[tuple[str, str]]
    foreign: bool = False


class RestoreTurn:
    """One node's turn; `told` is the result of another node in this generation, if there is one."""

    def __init__(self, descriptor: int, generation: Sequence[Any]) -> None:
        self._descriptor, self._generation = descriptor, list(generation)
        self.told = self._read()

    def _read(self) -> RestoreResult | None:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            data = file.read()
        try:
            body = json.loads(data)
            if body.pop("generation") != self._generation:
                return None
            stats = {name: _stat(*row) for name, row in body.pop("stats").items()}
            return RestoreResult(stats=stats, **body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # new, of another version, or cut off when its writer died

    def tell(self, told: RestoreResult) -> RestoreResult:
        """Write the result for the other nodes. Raises OSError."""
        data = json.dumps({"generation": self._generation, **asdict(told)}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        os.fsync(self._descriptor)
        return told


def _stat(size: int, changed: int, inode: int) -> Stat:
    return size, changed, inode


def lock_file(cwd: Path, folder: Path) -> Path:
    """The lock of a folder below the working directory `cwd`."""
    name = os.path.relpath(folder, cwd)
    return cwd / f"{MARK}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"


@contextmanager
def turn(
    path: Path, generation: Sequence[Any], over: Callable[[float], bool]
) -> Iterator[RestoreTurn | None]:
    """Wait for the lock; None when `over(seconds)`, which waits, returns that it is not needed any more.

    `generation` identifies the generation. Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        while not _locked(descriptor):
            if over(_WAIT_S):
                yield None
                return
        yield RestoreTurn(descriptor, generation)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True
