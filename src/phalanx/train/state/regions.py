"""Regions of tensors, each a start and a shape, for every framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from phalanx.checkpoint.tensorfile import ByteSource, TensorEntry
from phalanx.errors import CheckpointCorrupt

StoredPart = tuple[ByteSource, TensorEntry]
Numbers = tuple[int, ...]


def overlap_of(
    a: Sequence[int], a_shape: Sequence[int], b: Sequence[int], b_shape: Sequence[int]
) -> tuple[Numbers, Numbers] | None:
    """Return (start, shape) of the overlap of two regions; None without any."""
    start = tuple(max(x, y) for x, y in zip(a, b, strict=True))
    ends = (min(x + n, y + m) for x, n, y, m in zip(a, a_shape, b, b_shape, strict=True))
    size = tuple(end - at for at, end in zip(start, ends, strict=True))
    return None if any(one <= 0 for one in size) else (start, size)


def index_in(outer: Sequence[int], start: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a region within an array that begins at `outer`."""
    return tuple(slice(a - o, a - o + n) for o, a, n in zip(outer, start, shape, strict=True))


def stored_overlaps(
    parts: Iterable[StoredPart], start: Sequence[int], shape: Sequence[int], where: str
) -> Iterator[tuple[ByteSource, TensorEntry, Numbers, Numbers]]:
    """Yield each stored part that overlaps a region, with (start, shape) of the overlap.

    Raises CheckpointCorrupt at the end where the parts do not fill the region once.
    """
    missing = math.prod(shape)
    for source, row in parts:
        overlap = overlap_of(row.part.start, row.shape, start, shape)
        if overlap is not None:
            missing -= math.prod(overlap[1])
            yield source, row, *overlap
    if missing:
        raise CheckpointCorrupt(f"{where}: parts of a tensor are missing or overlap")
