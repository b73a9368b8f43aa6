"""The file operations of checkpoint commits, behind one interface.

All changes of the file system for checkpoints use it, so that tests can make the n-th operation
fail or kill the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from pathlib import Path
from typing import Any

PAGE_BYTES = mmap.PAGESIZE
_DIRECT_FROM_BYTES = 1 << 20
set_flags = fcntl.fcntl
_DIRECT: int = getattr(os, "O_DIRECT", 0)


def begins_a_page(view: memoryview) -> bool:
    """Whether memory begins at a page, as direct writes need; False if that is unknown."""
    if view.readonly or not view.nbytes:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % PAGE_BYTES == 0


class Disk:
    """The operating system's files."""

    def make_dir(self, path: Path) -> None:
        """Create a directory and its parents; one that exists is fine."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """Open a new file for writing; it must not exist."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, data: Any) -> None:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        if view.nbytes >= _DIRECT_FROM_BYTES:
            view = _written_past_the_cache(fd, view)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Have the file's bytes on stable storage."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a file made by `create`."""
        os.close(fd)

    def sync_dir(self, path: Path) -> None:
        """Have the directory's entries on stable storage."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Move within one file system, atomically."""
        source.rename(target)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory and all in it; one that is gone is fine."""
        shutil.rmtree(path, ignore_errors=True)


def _written_past_the_cache(fd: int, view: memoryview) -> memoryview:
    """Write whole pages straight from memory to the device, where all three allow it; returns the rest.

    The page cache would cost a copy, as much memory again, and what training data it pushes out; and the
    device would begin its work only when the file is synced.
    """
    whole = view[: view.nbytes // PAGE_BYTES * PAGE_BYTES]
    if not _DIRECT or not begins_a_page(view) or os.lseek(fd, 0, os.SEEK_CUR) % PAGE_BYTES:
        return view
    flags = set_flags(fd, fcntl.F_GETFL)
    done = 0
    try:
        set_flags(fd, fcntl.F_SETFL, flags | _DIRECT)
        while done < whole.nbytes and done % PAGE_BYTES == 0:
            done += os.write(fd, whole[done:])
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system or this memory cannot do it
            raise
    finally:
        set_flags(fd, fcntl.F_SETFL, flags)
    return view[done:]
