"""Digests that are computed while the bytes pass by.

A digest is text, `algorithm:hex`. XXH3-128 where xxhash is installed, else BLAKE2b from the standard
library; both find bit rot, neither is a signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Hash(Protocol):
    """What hashlib and xxhash objects have in common."""

    def update(self, data: Any, /) -> None:
        """Take in more bytes."""
        ...

    def hexdigest(self) -> str:
        """The digest of all taken in so far."""
        ...


def _blake2b() -> Hash:
    return hashlib.blake2b(digest_size=16)


_ALGORITHMS: dict[str, Callable[[], Hash]] = {"blake2b-128": _blake2b}
try:
    import xxhash
except ImportError:
    _PREFERRED = "blake2b-128"
else:
    _ALGORITHMS["xxh3-128"] = xxhash.xxh3_128
    _PREFERRED = "xxh3-128"

_CHUNK_BYTES = 1 << 20


class Digest:
    """A running digest; `text` gives `algorithm:hex`."""

    def __init__(self, algorithm: str = _PREFERRED) -> None:
        self.algorithm = algorithm
        try:
            self._hash = _ALGORITHMS[algorithm]()
        except KeyError:
            raise ValueError(f"unknown digest algorithm {algorithm!r}") from None

    def update(self, data: Any) -> None:
        """Take in more bytes."""
        self._hash.update(data)

    @property
    def text(self) -> str:
        """`algorithm:hex` of all taken in so far."""
        return f"{self.algorithm}:{self._hash.hexdigest()}"


def digest_of(data: Any, like: str | None = None) -> str:
    """The digest of some bytes; with `like`, by the same algorithm as that digest."""
    digest = Digest(like.partition(":")[0]) if like else Digest()
    digest.update(data)
    return digest.text


def digest_of_file(path: Path, like: str) -> str:
    """The digest of a file, read in pieces, by the algorithm of `like`. Raises OSError, ValueError."""
    digest = Digest(like.partition(":")[0])
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.text


def canonical(body: Mapping[str, Any]) -> bytes:
    """JSON bytes that depend on the values alone: what a manifest's own digest covers."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
