"""Columns of numbers and names in one file, read through a memory map.

A data set may have millions of files. Python objects for each would cost every worker process its own
copy; these columns are shared pages. `Names` is one blob of UTF-8 names, each ended by a NUL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

_DTYPES = {"<i8": np.int64, "<i4": np.int32, "|u1": np.uint8}
_ALIGN = 64
_ESCAPES = re.compile(rb"(?:\A|\0)/|(?:\A|[/\0])\.\.?(?=[/\0])|\\")


class Names(Sequence[str]):
    """A sequence of many short texts without an object for each."""

    def __init__(self, blob: Array, ends: Array) -> None:
        self.blob = blob
        self.ends = ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Names:
        """Pack texts. Raises ValueError for one that holds a NUL or is not Unicode."""
        parts = []
        for text in texts:
            if "\0" in text:
                raise ValueError(f"the name {text!r} holds a NUL")
            parts.append(text.encode() + b"\0")
        blob = np.frombuffer(b"".join(parts), np.uint8)
        return cls(blob, np.cumsum([0, *map(len, parts)], dtype=np.int64)[1:])

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        start = int(self.ends[at - 1]) if at else 0
        return self.blob[start : int(self.ends[at]) - 1].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.blob.tobytes().decode().split("\0")[:-1])

    def take(self, rows: Sequence[int] | Int64s) -> Names:
        """Return the names at these rows, in this order."""
        return Names.of(self[int(row)] for row in rows)

    def escape(self) -> bool:
        """Return whether any name is absolute or holds `.`, `..` or a backslash."""
        return _ESCAPES.search(self.blob.tobytes()) is not None

    def consistent(self) -> bool:
        """Return whether the ends are exactly the offsets after the NULs of the blob."""
        nuls = np.flatnonzero(np.asarray(self.blob) == 0) + 1
        return np.array_equal(nuls, self.ends) and (
            len(self.blob) == (int(self.ends[-1]) if len(self.ends) else 0)
        )


def pack(tables: Mapping[str, Array]) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Pack all tables into one byte string; returns it with the layout of each."""
    parts: list[bytes] = []
    layout: dict[str, dict[str, Any]] = {}
    at = 0
    for name, table in sorted(tables.items()):
        data = np.ascontiguousarray(table)
        if data.dtype.str not in _DTYPES:
            raise ValueError(f"table {name} has the type {data.dtype}")
        raw = data.tobytes()
        pad = -at % _ALIGN
        parts += [bytes(pad), raw]
        layout[name] = {"dtype": data.dtype.str, "shape": list(data.shape), "at": at + pad}
        at += pad + len(raw)
    return b"".join(parts), layout


def unpack(data: Any, layout: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """Return views into `data`. Raises ValueError, KeyError or TypeError when the layout does not fit."""
    tables: dict[str, Array] = {}
    for name, row in layout.items():
        dtype = np.dtype(_DTYPES[row["dtype"]])
        shape = tuple(int(n) for n in row["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if min(shape, default=0) < 0 or int(row["at"]) < 0:
            raise ValueError(f"table {name} has a shape that is not valid")
        if count == 0:
            tables[name] = np.zeros(shape, dtype)
        else:
            tables[name] = np.frombuffer(data, dtype, count, int(row["at"])).reshape(shape)
    return tables


def ragged(starts: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return the rows that the groups `rows` of a ragged table own, and their new starts.

    `starts` has one entry more than there are groups.
    """
    counts = starts[rows + 1] - starts[rows]
    new = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    owned = np.arange(int(new[-1])) - np.repeat(new[:-1], counts) + np.repeat(starts[rows], counts)
    return owned.astype(np.int64), new
