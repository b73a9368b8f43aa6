"""Readers of data sets under their public name; the code is in `train/data/readers`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.train.data.readers.cache import NodeCache
    from phalanx.train.data.readers.counting import Skew, rank_counts, skew
    from phalanx.train.data.readers.formats.decoding import decode_image
    from phalanx.train.data.readers.formats.images import ImageFolder
    from phalanx.train.data.readers.formats.parquet import Parquet
    from phalanx.train.data.readers.formats.tar import TarShards
    from phalanx.train.data.readers.formats.text import TextFile
    from phalanx.train.data.readers.formats.tfrecord import TFRecords
    from phalanx.train.data.readers.sources import LocalSource, ObjectSource

__all__ = [
    "ImageFolder",
    "LocalSource",
    "NodeCache",
    "ObjectSource",
    "Parquet",
    "Skew",
    "TFRecords",
    "TarShards",
    "TextFile",
    "decode_image",
    "rank_counts",
    "skew",
]

_MODULES = {
    "cache": ("NodeCache",),
    "counting": ("Skew", "rank_counts", "skew"),
    "formats.decoding": ("decode_image",),
    "formats.images": ("ImageFolder",),
    "formats.parquet": ("Parquet",),
    "formats.tar": ("TarShards",),
    "formats.text": ("TextFile",),
    "formats.tfrecord": ("TFRecords",),
    "sources": ("LocalSource", "ObjectSource"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"phalanx.train.data.readers.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
