"""Regions of tensors, each a start and a shape, for every framework."""

from __future__ import annotations

from collections.abc import Sequence


def overlap_of(
    a: Sequence[int], a_shape: Sequence[int], b: Sequence[int], b_shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return (start, shape) of the overlap of two regions; None without any."""
    start = tuple(max(x, y) for x, y in zip(a, b, strict=True))
    ends = (min(x + n, y + m) for x, n, y, m in zip(a, a_shape, b, b_shape, strict=True))
    size = tuple(end - at for at, end in zip(start, ends, strict=True))
    return None if any(one <= 0 for one in size) else (start, size)
