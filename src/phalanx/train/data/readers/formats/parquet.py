"""A data set of the rows of Parquet files, read at random by row group."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from phalanx.errors import DataCorrupt, UserError
from phalanx.kit.units import parse_size
from phalanx.train.data.readers.cache import NodeCache, OpenFile
from phalanx.train.data.readers.layouts import parquet
from phalanx.train.data.readers.locating import Root, open_index
from phalanx.train.data.readers.open_shards import OpenShards, Verify

_MAX_OPEN = 16


class Parquet(Dataset[dict[str, Any]]):
    """Rows of Parquet files as dicts: numbers as numpy scalars, lists of numbers as arrays, else Python.

    A row group is decoded as a whole and kept, with others, up to `group_bytes` per process: data
    written in small row groups (some 1,000 rows) suits shuffled reading.

    Raises NotFound, UserError, DataCorrupt; reading raises DataCorrupt, which names the file.
    """

    def __init__(
        self,
        files: Root,
        columns: Sequence[str],
        transform: Callable[[dict[str, Any]], Any] | None = None,
        *,
        index: str | Path | None = None,
        cache: NodeCache | None = None,
        verify: Verify = "first_open",
        group_bytes: int | str = "256MB",
    ) -> None:
        if isinstance(columns, str) or not columns:
            raise UserError(
                "columns must be a list of column names", "for example ['text', 'label']"
            )
        self.source, self.index = open_index(files, "parquet", cache, index)
        self.columns = tuple(columns)
        self.transform = transform
        self.group_bytes = parse_size(group_bytes)
        self._shelf = OpenShards(self.source, self.index, verify, _MAX_OPEN)
        counts = self.index.tables["groups"]
        self._row_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._readers: OrderedDict[int, tuple[OpenFile, Any]] = OrderedDict()
        self._groups: OrderedDict[int, tuple[int, dict[str, Any]]] = OrderedDict()
        self._held_bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        empty = {"_readers": OrderedDict(), "_groups": OrderedDict(), "_held_bytes": 0}
        return self.__dict__ | empty

    def __len__(self) -> int:
        return self.index.num_samples

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        group = int(np.searchsorted(self._row_starts, number, "right")) - 1
        values = self._group(group)
        row = number - int(self._row_starts[group])
        sample = {name: values[name][row] for name in self.columns}
        return sample if self.transform is None else self.transform(sample)

    def fingerprint(self) -> str:
        """Return a digest of the index: data sets with the same digest give the same samples."""
        return self.index.fingerprint()

    def _group(self, group: int) -> dict[str, Any]:
        found = self._groups.get(group)
        if found is not None:
            self._groups.move_to_end(group)
            return found[1]
        starts = self.index.tables["group_starts"]
        number = int(np.searchsorted(starts, group, "right")) - 1
        file, reader = self._reader(number)
        table = parquet.read_group(reader, group - int(starts[number]), self.columns, file.path)
        if table.num_rows != int(self.index.tables["groups"][group]):
            raise DataCorrupt(f"{file.path} has other row groups than its index says")
        values = {name: parquet.column_getter(table[name]) for name in self.columns}
        self._keep(group, int(table.nbytes), values)
        return values

    def _keep(self, group: int, num_bytes: int, values: dict[str, Any]) -> None:
        self._groups[group] = (num_bytes, values)
        self._held_bytes += num_bytes
        while self._held_bytes > self.group_bytes and len(self._groups) > 1:
            self._held_bytes -= self._groups.popitem(last=False)[1][0]

    def _reader(self, number: int) -> tuple[OpenFile, Any]:
        file = self._shelf.get(number)
        found = self._readers.pop(number, None)
        if found is None or found[0] is not file:
            reader = parquet.open_parquet(file.path)
            parquet.check_columns(reader, self.columns, file.path)
            found = (file, reader)
        self._readers[number] = found
        while len(self._readers) > _MAX_OPEN:
            self._readers.popitem(last=False)
        return found
