"""Deallocation of the disk blocks at a file's beginning while other processes append to it."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

# Deallocate and keep the size: see the modes of fallocate(2).
_DEALLOCATE = 1 | 2
BLOCK_BYTES = 1 << 20


@cache
def _fallocate() -> Any:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return call


def punch(descriptor: int, start: int, end: int) -> None:
    """Deallocate bytes `start` to `end`: they read as zeros, and the file keeps its size.

    Raises OSError, also where the file system cannot do it.
    """
    if _fallocate()(descriptor, _DEALLOCATE, start, end - start) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class TrimmedFile:
    """Deallocates the beginning of one file, a megabyte at a time, where the file system can."""

    def __init__(self, keep_head_bytes: int = 0) -> None:
        """The first `keep_head_bytes` are never touched, up to a whole megabyte."""
        self.begin = -(-keep_head_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self._refused = False

    def up_to(self, path: Path, end: int) -> None:
        """Deallocate the bytes before `end`."""
        end -= end % BLOCK_BYTES
        if self._refused or end <= self.begin:
            return
        try:
            # Opened by name: its writer may have closed it.
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                punch(descriptor, self.begin, end)
            finally:
                os.close(descriptor)
        except OSError:
            self._refused = True
            return
        self.begin = end
