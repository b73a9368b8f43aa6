"""A data set of blocks of text or token ids, read through memory maps."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from phalanx.errors import DataCorrupt, UserError
from phalanx.train.data.readers.cache import NodeCache, OpenFile
from phalanx.train.data.readers.index import Index
from phalanx.train.data.readers.layouts.columns import Array, Int64s
from phalanx.train.data.readers.layouts.text import MARK_EVERY, scan_text
from phalanx.train.data.readers.locating import Root, open_index
from phalanx.train.data.readers.open_shards import OpenShards, Verify

Unit = Literal["bytes", "characters", "uint16", "uint32", "int32", "int64"]
Block = tuple[torch.Tensor, torch.Tensor]

_NUMBERS = {
    "bytes": "|u1",
    "characters": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "int32": "<i4",
    "int64": "<i8",
}
_MAX_OPEN = 64


class TextFile(Dataset[Block]):
    """Blocks of `block` ids and the same block shifted by one: (inputs, targets), both int64.

    `unit` says what an id is: a byte; a character, numbered in `alphabet` (every character that occurs,
    sorted); or a number of this type, little-endian, as tokenizers write them. A block starts every
    `stride` units (default `block`, so that they do not overlap) and never crosses from one file to the
    next; what is left at a file's end is not used.

    Raises NotFound, UserError, DataCorrupt.
    """

    draws_nothing = True

    def __init__(
        self,
        path: Root,
        block: int,
        *,
        unit: Unit = "bytes",
        stride: int | None = None,
        index: str | Path | None = None,
        cache: NodeCache | None = None,
        verify: Verify = "first_open",
    ) -> None:
        self.block = block
        self.stride = block if stride is None else stride
        _check(block, self.stride, unit)
        self.unit = unit
        self.source, self.index = open_index(path, "text", cache, index)
        self._dtype = np.dtype(_NUMBERS[unit])
        self._shelf = OpenShards(self.source, self.index, verify, _MAX_OPEN)
        self._maps: dict[int, tuple[OpenFile, Any]] = {}
        self._marks, self._codes, lengths = self._units()
        counts = np.maximum(0, (lengths - block - 1) // self.stride + 1)
        self._block_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not len(self):
            raise UserError(
                f"{self.source.where} has fewer than {block + 1} {unit} in each file", "lower block"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}

    def __len__(self) -> int:
        return int(self._block_starts[-1])

    def __getitem__(self, number: int) -> Block:
        if not 0 <= number < len(self):
            raise IndexError(number)
        file = int(np.searchsorted(self._block_starts, number, "right")) - 1
        start = (number - int(self._block_starts[file])) * self.stride
        data = self._map(file)
        if self.unit == "characters":
            ids = self._characters(data, self._marks[file], start)
        else:
            ids = np.frombuffer(data, self._dtype, self.block + 1, start * self._dtype.itemsize)
        both = torch.from_numpy(ids.astype(np.int64))
        return both[:-1], both[1:]

    @property
    def alphabet(self) -> str:
        """Return the characters, in the order of their ids; empty for other units."""
        return "".join(map(chr, self._codes.tolist()))

    def encode(self, text: str) -> torch.Tensor:
        """Return the ids of characters. Raises UserError for one that the data does not have."""
        codes = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int32)
        ids = np.searchsorted(self._codes, codes)
        unknown = (ids >= len(self._codes)) | (
            self._codes[np.minimum(ids, len(self._codes) - 1)] != codes
        )
        if unknown.any():
            raise UserError(f"the character {text[int(unknown.argmax())]!r} is not in the alphabet")
        return torch.from_numpy(ids.astype(np.int64))

    def decode(self, ids: torch.Tensor) -> str:
        """Return the characters of ids."""
        codes = self._codes[ids.cpu().numpy()].astype("<u4")
        return bytes(codes.tobytes()).decode("utf-32-le")

    def fingerprint(self) -> str:
        """Return a digest of the index and of how blocks are cut."""
        return f"{self.index.fingerprint()}/{self.unit}:{self.block}:{self.stride}"

    def _units(self) -> tuple[list[Int64s], Array, Int64s]:
        """Return marks, alphabet and number of units per file."""
        if self.unit != "characters":
            lengths = self.index.sizes // self._dtype.itemsize
            if (self.index.sizes % self._dtype.itemsize).any():
                odd = int((self.index.sizes % self._dtype.itemsize).argmax())
                raise UserError(
                    f"{self.index.files[odd]} does not hold whole {self._dtype.name} tokens"
                )
            return [], np.zeros(0, np.int32), lengths
        index = _with_characters(self.index, self._shelf)
        counts, starts = index["num_characters"], index["mark_starts"]
        if (counts < 0).any():
            bad = self.index.files[int((counts < 0).argmax())]
            raise DataCorrupt(f"{self.source.where}/{bad} is not UTF-8", "use unit='bytes'")
        marks = [index["marks"][a:b] for a, b in pairwise(starts)]
        return marks, index["alphabet"], counts

    def _characters(self, data: Any, marks: Int64s, start: int) -> Array:
        first, last = start // MARK_EVERY, -(-(start + self.block + 1) // MARK_EVERY)
        end = int(marks[last]) if last < len(marks) else len(data)
        text = bytes(data[int(marks[first]) : end]).decode()
        wanted = text[start - first * MARK_EVERY :][: self.block + 1]
        codes = np.frombuffer(wanted.encode("utf-32-le"), "<u4").astype(np.int32)
        return np.searchsorted(self._codes, codes)

    def _map(self, number: int) -> Any:
        file = self._shelf.get(number)
        found = self._maps.get(number)
        if found is None or found[0] is not file:
            self._maps = {n: one for n, one in self._maps.items() if one[0].fd >= 0}
            found = (file, mmap.mmap(file.fd, file.size, access=mmap.ACCESS_READ))
            self._maps[number] = found
        return found[1]


def _check(block: int, stride: int, unit: str) -> None:
    if block < 1 or stride < 1:
        raise UserError("block and stride must be at least 1")
    if unit not in _NUMBERS:
        raise UserError(f"unit is {unit!r}", f"use one of {', '.join(_NUMBERS)}")


def _with_characters(index: Index, shelf: OpenShards) -> dict[str, Array]:
    """Return marks and alphabet from the index; without digests, from reading the files once."""
    if index.has_digests:
        return dict(index.tables)
    layouts = [scan_text(shelf.get(number).chunks()) for number in range(index.num_files)]
    codes = sorted({int(code) for one in layouts for code in one.alphabet})
    return {
        "marks": np.concatenate([one.marks for one in layouts]),
        "mark_starts": np.cumsum([0, *(len(one.marks) for one in layouts)], dtype=np.int64),
        "num_characters": np.array([one.num_characters for one in layouts], np.int64),
        "alphabet": np.array(codes, np.int32),
    }
