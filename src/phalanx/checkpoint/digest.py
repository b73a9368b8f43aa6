"""Digests of checkpoint files, computed while the bytes are read or written.

A digest is text, `algorithm:hex`. XXH3-128 where xxhash is installed, else BLAKE2b from the standard
library; both find bit rot, neither is a signature. `algorithm-tree` is the digest of the digests of a
file's chunks: any chunk can be checked alone, by any rank, while it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_ALGORITHMS: dict[str, Callable[[], Any]] = {
    "blake2b-128": partial(hashlib.blake2b, digest_size=16)
}
try:
    import xxhash
except ImportError:
    _PREFERRED = "blake2b-128"
else:
    _ALGORITHMS["xxh3-128"] = xxhash.xxh3_128
    _PREFERRED = "xxh3-128"

_BLOCK_BYTES = 1 << 20
CHUNK_BYTES = 4 << 20
_TREE = "-tree"


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
    def hexdigest(self) -> str:
        """The bare digest of all taken in so far, in hex."""
        return str(self._hash.hexdigest())

    @property
    def text(self) -> str:
        """`algorithm:hex` of all taken in so far."""
        return f"{self.algorithm}:{self.hexdigest}"


class TreeDigest:
    """A running digest by chunks of CHUNK_BYTES."""

    def __init__(self, algorithm: str = _PREFERRED + _TREE) -> None:
        self.algorithm = algorithm
        self._leaf = algorithm.removesuffix(_TREE)
        self._chunks: list[str] = []
        self._running = Digest(self._leaf)
        self._filled = 0

    def update(self, data: Any) -> None:
        """Take in more bytes."""
        view = memoryview(data).cast("B")
        while view:
            part = view[: CHUNK_BYTES - self._filled]
            self._running.update(part)
            self._filled += part.nbytes
            view = view[part.nbytes :]
            if self._filled == CHUNK_BYTES:
                self._close()

    def _close(self) -> None:
        self._chunks.append(self._running.hexdigest)
        self._running, self._filled = Digest(self._leaf), 0

    @property
    def chunks(self) -> tuple[str, ...]:
        """The digests of all chunks so far, in hex."""
        last = (self._running.hexdigest,) if self._filled else ()
        return (*self._chunks, *last)

    @property
    def text(self) -> str:
        """`algorithm-tree:hex` of all taken in so far."""
        return root_of(self.chunks, self.algorithm)


def root_of(chunks: Sequence[str], algorithm: str) -> str:
    """The digest of a file from those of its chunks. Raises ValueError."""
    top = Digest(algorithm.removesuffix(_TREE))
    top.update(bytes.fromhex("".join(chunks)))
    return f"{algorithm}:{top.hexdigest}"


def is_tree(digest: str) -> bool:
    """Whether a digest was made from those of chunks."""
    return digest.partition(":")[0].endswith(_TREE)


def running(like: str) -> Digest | TreeDigest:
    """An empty digest of the same algorithm as `like`. Raises ValueError."""
    algorithm = like.partition(":")[0]
    return TreeDigest(algorithm) if is_tree(like) else Digest(algorithm)


def digest_of(data: Any, like: str | None = None) -> str:
    """The digest of some bytes; with `like`, by the same algorithm as that digest."""
    digest = running(like) if like else Digest()
    digest.update(data)
    return digest.text


def digest_of_file(path: Path, like: str) -> str:
    """The digest of a file, read in pieces, by the algorithm of `like`. Raises OSError, ValueError."""
    digest = running(like)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.text


def canonical(body: Mapping[str, Any]) -> bytes:
    """JSON bytes that depend on the values alone: what a manifest's own digest covers."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
