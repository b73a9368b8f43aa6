"""Readers of data sets under their public name; the code is in `train/data/readers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.train.data import readers

if TYPE_CHECKING:
    from phalanx.train.data.readers import (
        ImageFolder,
        LocalSource,
        NodeCache,
        ObjectSource,
        Parquet,
        Skew,
        TarShards,
        TextFile,
        decode_image,
        rank_counts,
        skew,
    )

__all__ = [
    "ImageFolder",
    "LocalSource",
    "NodeCache",
    "ObjectSource",
    "Parquet",
    "Skew",
    "TarShards",
    "TextFile",
    "decode_image",
    "rank_counts",
    "skew",
]


def __getattr__(name: str) -> Any:
    return getattr(readers, name)
