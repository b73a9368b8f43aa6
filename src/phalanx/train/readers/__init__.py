"""Data sets that can be read at random, checked, and fetched through a cache on the node.

Here live the map-style readers (`ImageFolder`, `TextFile`, `Parquet`, `TarShards`), the index they
read by, and the cache in front of object storage. Order, position, sharding over ranks and randomness
are the loader's business (`phalanx.train`): a reader only knows sample number i.

`index`, `tables`, `scanning` and `verifying` need no torch; the readers are imported when asked for.
Nothing here unpickles what it reads.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.train.readers.cache import NodeCache
    from phalanx.train.readers.counting import Skew, rank_counts, skew
    from phalanx.train.readers.decoding import decode_image
    from phalanx.train.readers.images import ImageFolder
    from phalanx.train.readers.parquet import Parquet
    from phalanx.train.readers.sources import LocalSource, ObjectSource
    from phalanx.train.readers.tar import TarShards
    from phalanx.train.readers.text import TextFile

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

_HOME = {
    "ImageFolder": "images",
    "LocalSource": "sources",
    "NodeCache": "cache",
    "ObjectSource": "sources",
    "Parquet": "parquet",
    "Skew": "counting",
    "TarShards": "tar",
    "TextFile": "text",
    "decode_image": "decoding",
    "rank_counts": "counting",
    "skew": "counting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
