"""Write the output of a process to a file, byte for byte, without blocking the process."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

READ_BYTES = 1 << 18
TAIL_BYTES = 64 * 1024
# More places are not told apart: a disk that is full and free in turns must not fill the memory.
_MOST_LOSSES = 10_000

Append = Callable[[bytes], int]
"""Appends bytes and returns how many were taken, as `os.write`; raises OSError."""


_GENERATION = re.compile(r"g(\d{3,9})")
_OUTPUT = re.compile(r"r(\d{5,9})\.(out|err)")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """The file of one output stream of a rank, in the folder of its supervisor."""

    generation: int
    rank: int
    stream: str  # out or err
    path: Path
    size: int  # bytes


def output_files(node_dir: Path) -> Iterator[OutputFile]:
    """The files with output of all generations that a supervisor left, in order."""
    for folder in sorted(node_dir.glob("g*")):
        generation = _GENERATION.fullmatch(folder.name)
        for path in sorted(folder.glob("r*.*")) if generation is not None else ():
            output = _OUTPUT.fullmatch(path.name)
            if output is None or generation is None:
                continue
            with contextlib.suppress(OSError):
                size = path.lstat().st_size
                yield OutputFile(int(generation[1]), int(output[1]), output[2], path, size)


def open_append(path: Path) -> tuple[int, Append]:
    """A file opened for appending, and the function that appends to it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    return descriptor, lambda data: os.write(descriptor, data)


@dataclass(slots=True)
class Capture:
    """One stream. Bytes the disk refuses are dropped and counted; the writer goes on.

    `num_written` is the size of the file, `num_dropped` what never reached it. `losses` says at which
    offsets of the file, with the number of bytes, until a reader takes them out. `tail` are the last bytes
    whether written or not.
    """

    append: Append
    num_written: int = 0
    num_dropped: int = 0
    tail: bytearray = field(default_factory=bytearray)
    error: str | None = None
    losses: deque[tuple[int, int]] = field(default_factory=deque)

    def take(self, data: bytes) -> None:
        """Store what was read from the pipe."""
        self.tail += data
        if len(self.tail) > TAIL_BYTES:
            del self.tail[: len(self.tail) - TAIL_BYTES]
        rest = memoryview(data)
        while rest:
            try:
                taken = self.append(bytes(rest))
            except OSError as error:
                self._lose(len(rest))
                self.error = self.error or (error.strerror or str(error))
                return
            self.num_written += taken
            rest = rest[taken:]

    def _lose(self, num_bytes: int) -> None:
        self.num_dropped += num_bytes
        if self.losses and (
            self.losses[-1][0] == self.num_written or len(self.losses) >= _MOST_LOSSES
        ):
            at, before = self.losses.pop()
            self.losses.append((at, before + num_bytes))
        else:
            self.losses.append((self.num_written, num_bytes))


def read_available(descriptor: int) -> tuple[bytes, bool]:
    """One read from a non-blocking pipe: (data, whether the pipe is at its end)."""
    try:
        data = os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return b"", False
    except OSError:
        return b"", True
    return data, not data
