"""Several nodes with one folder take turns: the first puts it back, the others are told what it did.

A hidden file in the folder is locked meanwhile, and says afterwards in which generation that was.
Without it a node that is late would put back what ranks of the others are already writing. Where every
node has a folder of its own, each has its own file too. The kernel gives the lock back when a process dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.checkpoint.folders import Stat

MARK = ".phalanx-put-back"
_WAIT_S = 0.1
# File systems that know no locks: what is left is the file itself.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was put back: the checkpoint's path and step, the files then, what was bad and why."""

    path: str | None
    step: int
    stats: dict[str, Stat]
    bad: Sequence[tuple[str, str]]


class RestoreTurn:
    """One node's turn; `told` is what another has done in this generation, if one has."""

    def __init__(self, descriptor: int, whose: Sequence[Any]) -> None:
        self._descriptor, self._whose = descriptor, list(whose)
        self.told = self._read()

    def _read(self) -> RestoreResult | None:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            data = file.read()
        try:
            body = json.loads(data)
            if body.pop("whose") != self._whose:
                return None
            stats = {name: _stat(*row) for name, row in body.pop("stats").items()}
            return RestoreResult(stats=stats, **body)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # new, of another version, or cut off when its writer died

    def tell(self, told: RestoreResult) -> RestoreResult:
        """Say to the others what was done. Raises OSError."""
        data = json.dumps({"whose": self._whose, **asdict(told)}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        os.fsync(self._descriptor)
        return told


def _stat(size: int, changed: int, inode: int) -> Stat:
    return size, changed, inode


@contextmanager
def turn(
    folder: Path, whose: Sequence[Any], over: Callable[[float], bool]
) -> Iterator[RestoreTurn | None]:
    """Wait for this node's turn; None when nobody needs it any more, as `over(seconds)` says, which waits.

    `whose` names the generation. Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / MARK, flags, 0o644)
    try:
        while not _locked(descriptor):
            if over(_WAIT_S):
                yield None
                return
        yield RestoreTurn(descriptor, whose)
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
