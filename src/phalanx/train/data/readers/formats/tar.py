"""A data set of tar shards in WebDataset's layout, read at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from phalanx.errors import DataCorrupt, PlatformError
from phalanx.train.data.readers.cache import NodeCache
from phalanx.train.data.readers.layouts.columns import Names
from phalanx.train.data.readers.locating import Root, open_index
from phalanx.train.data.readers.open_shards import OpenShards, Verify

Decoder = Callable[[bytes], Any]


def _image(data: bytes) -> Any:
    from phalanx.train.data.readers.formats.decoding import decode_image

    return decode_image(data)


DECODERS: Mapping[str, Decoder] = {
    "jpg": _image,
    "jpeg": _image,
    "png": _image,
    "cls": int,
    "txt": bytes.decode,
    "json": json.loads,
}
"""By the last part of a suffix. What is not here stays bytes; nothing is ever unpickled."""


class TarShards(Dataset[dict[str, Any]]):
    """Samples of tar shards as dicts: `__key__`, and each member's decoded contents by suffix.

    `shards` is a directory, a pattern such as `train-{000..127}.tar`, or a list. Any sample can be
    read: its members are found through the index, without unpacking. Shards must be uncompressed.
    `max_open` shards are held open by each process.

    Raises NotFound, UserError, DataCorrupt; reading raises DataCorrupt, which names shard and sample.
    """

    def __init__(
        self,
        shards: Root,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        *,
        decoders: Mapping[str, Decoder] = DECODERS,
        index: str | Path | None = None,
        cache: NodeCache | None = None,
        verify: Verify = "first_open",
        max_open: int = 16,
    ) -> None:
        self.source, self.index = open_index(shards, "tar", cache, index)
        self.transform = transform
        self.decoders = dict(decoders)
        self._shelf = OpenShards(self.source, self.index, verify, max_open)
        tables = self.index.tables
        self._starts, self._members = tables["member_starts"], tables["members"]
        self._suffixes = tables["member_suffixes"]
        self._keys = Names(tables["key_blob"], tables["key_ends"])

    def __len__(self) -> int:
        return self.index.num_samples

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = int(np.searchsorted(self.index.sample_starts, number, "right")) - 1
        file = self._shelf.get(shard)
        sample: dict[str, Any] = {"__key__": self._keys[number]}
        for member in range(int(self._starts[number]), int(self._starts[number + 1])):
            at, size = self._members[member].tolist()
            suffix = self.index.suffixes[self._suffixes[member]]
            sample[suffix] = self._decoded(suffix, file.read_at(at, size), shard, sample["__key__"])
        return sample if self.transform is None else self.transform(sample)

    def fingerprint(self) -> str:
        """Return a digest of the index: data sets with the same digest give the same samples."""
        return self.index.fingerprint()

    def _decoded(self, suffix: str, data: bytes, shard: int, key: str) -> Any:
        decoder = self.decoders.get(suffix.rpartition(".")[2])
        if decoder is None:
            return data
        try:
            return decoder(data)
        except (ValueError, OSError, PlatformError) as error:
            where = f"{self.source.where}/{self.index.files[shard]}"
            raise DataCorrupt(f"{where}: {key}.{suffix} cannot be decoded: {error}") from error
