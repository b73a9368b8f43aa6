"""Giving back the disk blocks of a file's beginning while others go on writing at its end."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
BLOCK_BYTES = 1 << 20


@cache
def _fallocate() -> Any:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return call


def punch(descriptor: int, start: int, end: int) -> None:
    """Turn bytes `start` to `end` into a hole: they read as zeros, and offsets stay what they were.

    Raises OSError, also where the file system has no holes.
    """
    if _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class TrimmedFile:
    """One file whose beginning is let go of, a megabyte at a time; what cannot be let go of stays."""

    def __init__(self, keep_head_bytes: int = 0) -> None:
        """The first `keep_head_bytes` are never touched, up to a whole megabyte."""
        self.begin = -(-keep_head_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self._refused = False

    def up_to(self, path: Path, end: int) -> None:
        """Nobody needs the bytes before `end` any more."""
        end -= end % BLOCK_BYTES
        if self._refused or end <= self.begin:
            return
        try:
            # Opened by name: whoever wrote it may have closed it since.
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                punch(descriptor, self.begin, end)
            finally:
                os.close(descriptor)
        except OSError:
            self._refused = True
            return
        self.begin = end
