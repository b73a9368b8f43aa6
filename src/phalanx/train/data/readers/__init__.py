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
    from phalanx.train.data.readers.cache import NodeCache
    from phalanx.train.data.readers.counting import Skew, rank_counts, skew
    from phalanx.train.data.readers.formats.decoding import decode_image
    from phalanx.train.data.readers.formats.images import ImageFolder
    from phalanx.train.data.readers.formats.parquet import Parquet
    from phalanx.train.data.readers.formats.tar import TarShards
    from phalanx.train.data.readers.formats.text import TextFile
    from phalanx.train.data.readers.sources import LocalSource, ObjectSource

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
    "ImageFolder": "formats.images",
    "LocalSource": "sources",
    "NodeCache": "cache",
    "ObjectSource": "sources",
    "Parquet": "formats.parquet",
    "Skew": "counting",
    "TarShards": "formats.tar",
    "TextFile": "formats.text",
    "decode_image": "formats.decoding",
    "rank_counts": "counting",
    "skew": "counting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
