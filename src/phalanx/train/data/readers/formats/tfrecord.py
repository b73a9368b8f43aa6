"""A data set of TFRecord shards, read at random without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from phalanx.errors import DataCorrupt
from phalanx.train.data.readers.cache import NodeCache
from phalanx.train.data.readers.layouts.tfrecord import parse_example, read_record
from phalanx.train.data.readers.locating import Root, open_index
from phalanx.train.data.readers.open_shards import OpenShards, Verify


class TFRecords(Dataset[Any]):
    """Records of TFRecord files; by default each is a `tf.train.Example`, as a dict of its features.

    A feature is a list of bytes, or an array of float32 or int64. `parse` takes the bytes of a record and
    returns a sample: give `bytes` for records of another kind. `files` is a directory, a pattern such as
    `train.tfrecord-*`, or a list. Files must not be compressed. The CRC of every record is checked.

    Raises NotFound, UserError, DataCorrupt; reading raises DataCorrupt, which names file and record.
    """

    def __init__(
        self,
        files: Root,
        transform: Callable[[Any], Any] | None = None,
        *,
        parse: Callable[[bytes], Any] = parse_example,
        index: str | Path | None = None,
        cache: NodeCache | None = None,
        verify: Verify = "first_open",
        max_open: int = 16,
    ) -> None:
        self.source, self.index = open_index(files, "tfrecord", cache, index)
        self.transform = transform
        self.parse = parse
        self._shelf = OpenShards(self.source, self.index, verify, max_open)
        self._records = self.index.tables["records"]

    def __len__(self) -> int:
        return self.index.num_samples

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = int(np.searchsorted(self.index.sample_starts, number, "right")) - 1
        where = f"{self.source.where}/{self.index.files[shard]}"
        at, size = self._records[number].tolist()
        data = read_record(self._shelf.get(shard).read_at, at, size, where)
        try:
            sample = self.parse(data)
        except ValueError as error:
            said = f"{where}: the record at byte {at} is no tf.train.Example: {error}"
            raise DataCorrupt(said, "give `parse` for records of another kind") from error
        return sample if self.transform is None else self.transform(sample)

    def fingerprint(self) -> str:
        """Return a digest of the index: data sets with the same digest give the same samples."""
        return self.index.fingerprint()
