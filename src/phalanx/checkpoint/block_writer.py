"""Writing of checkpoint files: bytes are cut into blocks, and a thread writes the blocks.

A block is one chunk of the file's digest. Where a piece covers a block and begins at a page's beginning,
the block is the piece's own memory; everything else is gathered in a small ring of buffers. So every
block but the last can bypass the page cache (`Disk.write`), whatever the sizes of the pieces.
"""

from __future__ import annotations

import itertools
import mmap
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from phalanx.checkpoint.digest import CHUNK_BYTES
from phalanx.checkpoint.disk import Disk, begins_a_page

BLOCK_BYTES = CHUNK_BYTES
_STEP_BYTES = 1 << 20  # copied at a time: others wait no longer for the interpreter
_UNDER_WAY = 2


def blocks_of(pieces: Iterable[Any]) -> Iterator[memoryview]:
    """Blocks of BLOCK_BYTES, the last one shorter. A block is good until _UNDER_WAY more were taken."""
    ring = itertools.cycle([memoryview(mmap.mmap(-1, BLOCK_BYTES)) for _ in range(_UNDER_WAY + 1)])
    room, filled = next(ring), 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            if not filled and view.nbytes >= BLOCK_BYTES and begins_a_page(view):
                yield view[:BLOCK_BYTES]
                view = view[BLOCK_BYTES:]
                continue
            size = min(view.nbytes, BLOCK_BYTES - filled, _STEP_BYTES)
            room[filled : filled + size] = view[:size]
            filled, view = filled + size, view[size:]
            if filled == BLOCK_BYTES:
                yield room
                room, filled = next(ring), 0
    if filled:
        yield room[:filled]


class BackgroundWriter:
    """Writes one file's blocks in order on a thread; few are under way at a time.

    A file of one short block needs no thread. Errors of the disk come out of a later `write`, or of
    `finish`.
    """

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk, self._fd = disk, fd
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()

    def write(self, block: memoryview) -> None:
        """Write `block` after all before it; it must stay as it is for a while. Raises OSError."""
        if self._pool is None:
            if block.nbytes < BLOCK_BYTES:
                self._disk.write(self._fd, block)
                return
            self._pool = ThreadPoolExecutor(1, "phalanx-writer")
        if len(self._under_way) == _UNDER_WAY:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(self._disk.write, self._fd, block))

    def finish(self) -> None:
        """Wait until everything is written. Raises OSError."""
        while self._under_way:
            self._under_way.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
