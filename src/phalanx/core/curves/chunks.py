"""The bytes of a metric chunk: columns of points that are read one by one.

Four bytes say what it is and its version, four the length of the head. The head is JSON: the number of
rows, the arrivals that the chunk was joined of, and one entry for each column. Columns follow in this
order: ranks, steps and times as differences, then for each metric its values, before them a bit for each
row where not every row has one. Numbers of several bytes stand plane by plane and are compressed by zlib
where that is shorter.

A report that has just arrived is joined with others soon: its numbers stand side by side, and without
differences, which takes a fraction of the time to write and to read. Such chunks have version 2.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phalanx.core.curves.columns import Floats, Ints, MetricColumns

VERSION = 2
"""The newest version that is read."""
MAX_ROWS = 1 << 20
"""The most points in one chunk."""
MAX_VALUES = 1 << 22
"""The most values of all metrics in one chunk."""
_MAGIC = b"PMC"
_HEAD = 8
_LEVEL = 1
# Bytes of a column that are not compressed: those of one report, which is soon joined with others.
_SHORT = 4096
_PLAIN_INTS, _PLAIN_FLOATS = "plain <i8", ("plain <f4", "plain <f8")
_PLAIN_WIDTHS = {one: np.dtype(one.removeprefix("plain ")) for one in (_PLAIN_INTS, *_PLAIN_FLOATS)}
_INTS = ("<i1", "<i2", "<i4", "<i8")
_FLOATS = ("<f4", "<f8")
Arrival: TypeAlias = tuple[int, int]
"""(number, rows) of one report that is part of a joined chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedChunk:
    """A chunk as it is read. `arrivals` is empty where it was not joined of others."""

    columns: MetricColumns
    arrivals: list[Arrival]


def encode(columns: MetricColumns, arrivals: Sequence[Arrival] = ()) -> bytes:
    """The bytes of a chunk. Raises ValueError for more than a chunk may have."""
    rows = columns.num_rows
    _check_size(columns)
    heads: list[Any] = []
    parts: list[bytes] = []
    for values in (columns.ranks, columns.steps, columns.times):
        first, kind, data = _pack_ints(values)
        heads.append([first, kind, len(data)])
        parts.append(data)
    for name, (places, found) in columns.values.items():
        mask = b"" if len(places) == rows else _pack_mask(places, rows)
        kind, data = _pack_floats(found)
        heads.append([name, len(places), len(mask), kind, len(data)])
        parts += (mask, data)
    head = json.dumps(
        {"rows": rows, "arrivals": [list(one) for one in arrivals], "columns": heads},
        separators=(",", ":"),
    ).encode()
    return b"".join((_start(1, head), head, *parts))


def encode_report(columns: MetricColumns) -> bytes:
    """The bytes of one report, which are quick to make. Raises ValueError as `encode` does."""
    rows = columns.num_rows
    _check_size(columns)
    heads: list[Any] = []
    parts: list[bytes] = []
    for numbers in (columns.ranks, columns.steps, columns.times):
        data = numbers.astype("<i8", copy=False).tobytes()
        heads.append([0, _PLAIN_INTS, len(data)])
        parts.append(data)
    for name, (places, found) in columns.values.items():
        mask = b"" if len(places) == rows else _pack_mask(places, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            short = found.astype("<f4")
        is_same = bool((short == found).all())
        data = short.tobytes() if is_same else found.astype("<f8", copy=False).tobytes()
        heads.append([name, len(places), len(mask), _PLAIN_FLOATS[not is_same], len(data)])
        parts += (mask, data)
    head = json.dumps({"rows": rows, "arrivals": [], "columns": heads}).encode()
    return b"".join((_start(2, head), head, *parts))


def _start(version: int, head: bytes) -> bytes:
    return _MAGIC + bytes([version]) + len(head).to_bytes(4, "little")


def _check_size(columns: MetricColumns) -> None:
    rows, many = columns.num_rows, columns.num_values
    if rows > MAX_ROWS or many > MAX_VALUES:
        raise ValueError(f"{rows} points with {many} values are too many for a chunk")


def decode(data: bytes, names: Collection[str] | None = None) -> DecodedChunk:
    """Read a chunk; with `names`, only the values of these metrics. Raises ValueError for wrong bytes."""
    try:
        return _decode(memoryview(data), names)
    except (KeyError, TypeError, OverflowError, IndexError, zlib.error, RecursionError) as error:
        raise ValueError(f"not a metric chunk: {error}") from error


def _decode(data: memoryview, names: Collection[str] | None) -> DecodedChunk:
    if bytes(data[:3]) != _MAGIC:
        raise ValueError("not a metric chunk")
    if not 1 <= data[3] <= VERSION:
        raise ValueError(f"a metric chunk of version {data[3]}; this release reads up to {VERSION}")
    at = _HEAD + int.from_bytes(data[4:_HEAD], "little")
    if at > len(data):
        raise ValueError("a metric chunk that is cut off")
    head = json.loads(bytes(data[_HEAD:at]))
    rows = _count(head["rows"], MAX_ROWS)
    arrivals = [(int(number), _count(many, rows)) for number, many in head["arrivals"]]
    if arrivals and sum(many for _, many in arrivals) != rows:
        raise ValueError("the arrivals of a metric chunk have another number of rows")
    fixed: list[Ints] = []
    for first, kind, size in head["columns"][:3]:
        fixed.append(_unpack_ints(_cut(data, at, size), int(first), kind, rows))
        at += size
    left = MAX_VALUES
    wanted = None if names is None else frozenset(names)
    values: dict[str, tuple[Ints, Floats]] = {}
    everywhere = np.arange(rows, dtype=np.int64)
    for name, many, mask_size, kind, size in head["columns"][3:]:
        left -= _count(many, min(rows, left))
        mask, body = _cut(data, at, mask_size), _cut(data, at + mask_size, size)
        at += mask_size + size
        if wanted is None or name in wanted:
            places = _unpack_mask(mask, rows) if mask_size else everywhere
            if len(places) != many:
                raise ValueError(f"metric {name!r} has {len(places)} rows and {many} values")
            values[str(name)] = places, _unpack_floats(body, kind, many)
    if at != len(data):
        raise ValueError("bytes behind the end of a metric chunk")
    ranks, steps, times = fixed
    return DecodedChunk(MetricColumns(ranks, steps, times, values), arrivals)


def _count(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a count of {value!r} in a metric chunk; it may be {most}")
    return value


def _cut(data: memoryview, at: int, size: Any) -> memoryview:
    if at + _count(size, len(data)) > len(data):
        raise ValueError("a metric chunk that is cut off")
    return data[at : at + size]


def _pack_ints(values: Ints) -> tuple[int, str, bytes]:
    """(first value, width, differences); differences wrap, so that every number of 64 bits has one."""
    if not len(values):
        return 0, "<i1", b""
    steps = values[1:] - values[:-1]
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    # In two's complement -2**63 needs 64 bits, as 2**63 - 1 does.
    bits = max((one if one >= 0 else ~one).bit_length() for one in (low, high)) + 1
    kind = next(one for one in _INTS if bits <= 8 * np.dtype(one).itemsize)
    return int(values[0]), kind, _planes(steps.astype(kind))


def _unpack_ints(data: memoryview, first: int, kind: str, rows: int) -> Ints:
    if kind == _PLAIN_INTS:
        return _plain(data, kind, rows).astype(np.int64, copy=False)
    if kind not in _INTS:
        raise ValueError(f"{kind!r} is no width of whole numbers")
    found = np.empty(rows, np.int64)
    if rows:
        found[0] = first
        found[1:] = _from_planes(data, kind, rows - 1)
        np.cumsum(found, out=found)
    elif len(data):
        raise ValueError("a column without rows has bytes")
    return found


def _pack_floats(values: Floats) -> tuple[str, bytes]:
    """Single precision where it has the same values, which is so for what torch computes."""
    with np.errstate(over="ignore", invalid="ignore"):
        short = values.astype("<f4")
    is_same = np.array_equal(short.astype(np.float64), values, equal_nan=True)
    kind = "<f4" if is_same else "<f8"
    return kind, _planes(short if is_same else values.astype("<f8"))


def _unpack_floats(data: memoryview, kind: str, many: int) -> Floats:
    if kind in _PLAIN_FLOATS:
        return _plain(data, kind, many).astype(np.float64)
    if kind not in _FLOATS:
        raise ValueError(f"{kind!r} is no width of numbers")
    return _from_planes(data, kind, many).astype(np.float64)


def _plain(data: memoryview, kind: str, many: int) -> NDArray[Any]:
    """Numbers that stand side by side."""
    width = _PLAIN_WIDTHS[kind]
    if len(data) != many * width.itemsize:
        raise ValueError(f"a column of {many} numbers has {len(data)} bytes")
    return np.frombuffer(data, width)


def _planes(values: NDArray[Any]) -> bytes:
    """The first bytes of all numbers, then the second ones, and so on; 1 before it: compressed."""
    width = values.dtype.itemsize
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width).T.tobytes()
    return _squeezed(data)


def _from_planes(data: memoryview, kind: str, many: int) -> NDArray[Any]:
    width = np.dtype(kind).itemsize
    flat = np.frombuffer(_spread(data, many * width), np.uint8)
    return np.ascontiguousarray(flat.reshape(width, many).T).view(kind).reshape(many)


def _pack_mask(places: Ints, rows: int) -> bytes:
    mask = np.zeros(rows, np.uint8)
    mask[places] = 1
    return _squeezed(np.packbits(mask).tobytes())


def _unpack_mask(data: memoryview, rows: int) -> Ints:
    bits = np.frombuffer(_spread(data, (rows + 7) // 8), np.uint8)
    return np.flatnonzero(np.unpackbits(bits, count=rows)).astype(np.int64)


def _squeezed(data: bytes) -> bytes:
    short = zlib.compress(data, _LEVEL) if len(data) > _SHORT else data
    return b"\1" + short if len(short) < len(data) else b"\0" + data


def _spread(data: memoryview, size: int) -> bytes:
    """The reverse of `_squeezed`, which must have `size` bytes."""
    if not len(data) or data[0] > 1:
        raise ValueError("a column without a mark of its compression")
    body = bytes(data[1:])
    if data[0]:
        reader = zlib.decompressobj()
        body = reader.decompress(body, size + 1)
        if not reader.eof or reader.unused_data:
            raise ValueError("a compressed column of another length")
    if len(body) != size:
        raise ValueError(f"a column has {len(body)} bytes, and must have {size}")
    return body
