"""Access to a prefix of an object store. All operations may take long.

The client runs threads of its own, which a fork leaves behind: only a process of its own may use this
(`remote_mirror`), never a rank. Credentials come from the environment; no message ever holds one.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from phalanx.errors import CheckpointUnavailable, NotFound, NotSupported, PermissionDenied
from phalanx.kit.clock import backoff_s

_T = TypeVar("_T")
_PART_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20  # of a stream: every piece is a change between threads
_PARTS_AT_ONCE = 12
_MAX_PARTS = 9000  # S3 takes 10,000
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object: its name below the prefix, size, and when it came, in seconds since 1970."""

    name: str
    size_bytes: int
    changed_at_s: float


def client_options(
    url: str, given: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Arguments for the client: few retries of its own, plain HTTP only to an address that says so."""
    options = dict(given)
    client: dict[str, Any] = {"timeout": "120s", **options.get("client_options", {})}
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    found = [environ[name] for name in names if environ.get(name)]
    if url.startswith("s3://") and "endpoint" not in options and found:
        options["endpoint"] = found[0]
    if str(options.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = True
    if not url.startswith(("file:", "memory:")):
        options["client_options"] = client
        options.setdefault(
            "retry_config", {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
        )
    return options


def open_store(
    url: str, environ: Mapping[str, str], given: Mapping[str, Any] | None = None
) -> ObjectStore:
    """The store behind `url` (`s3://bucket/prefix`, `gs://`, `az://`, `file:///…`). Connects later.

    Raises NotSupported.
    """
    try:
        from obstore.store import HTTPStore, from_url
    except ImportError as error:
        text = f"object storage needs obstore: {error}"
        raise NotSupported(text, "pip install 'phalanx[data]'") from error
    options = client_options(url, given or {}, environ)
    if url.startswith("file:"):
        options["mkdir"] = True
    try:
        client = from_url(url, **options)
    except Exception as error:  # the client raises many kinds
        raise NotSupported(f"this object store cannot be used: {brief(error)}") from error
    if isinstance(client, HTTPStore):
        hint = "use s3://bucket/prefix, with the server's address in AWS_ENDPOINT_URL"
        raise NotSupported(f"{url} is a web address, not an object store", hint)
    return ObjectStore(client)


def brief(error: BaseException) -> str:
    """The first line of an error: a client's later lines quote whole answers of the server."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"


class ObjectStore:
    """A prefix of an object store, behind obstore's client; every call is tried again, with growing pauses.

    `serves_ranges` turns False where the server answers a request for a range with the whole object. All
    operations raise CheckpointUnavailable (after retries), PermissionDenied or NotSupported.
    """

    def __init__(
        self, client: Any, *, attempts: int = _ATTEMPTS, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._attempts, self._pause = client, attempts, pause
        self._rng = random.Random()
        self.serves_ranges = True

    def objects(self, below: str | None = None) -> list[ObjectInfo]:
        """All objects below the prefix, or below one name in it."""
        return self._retried(lambda: self._objects(below))

    def _objects(self, below: str | None) -> list[ObjectInfo]:
        return [
            ObjectInfo(one["path"], one["size"], one["last_modified"].timestamp())
            for chunk in self._client.list(below)
            for one in chunk
        ]

    def get(self, name: str) -> bytes:
        """A small object. Raises NotFound."""
        return self._retried(lambda: bytes(self._client.get(name).bytes()))

    def stream(self, name: str, part: tuple[int, int] | None = None) -> Generator[memoryview]:
        """An object, or a part of it (first byte, end), piece by piece; a break in the middle raises, too.

        Raises NotFound; for a part NotSupported where the server does not serve ranges.
        """
        options = None if part is None else {"range": part}
        try:
            answer = self._retried(lambda: self._client.get(name, options=options))
        except NotSupported:
            self.serves_ranges = False
            raise
        try:
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                yield memoryview(piece)
        except Exception as error:
            raise _translated(error) from error

    def put(self, name: str, pieces: Callable[[], Iterable[Any]], size_bytes: int) -> None:
        """Make an object of pieces; it appears whole or not at all.

        `pieces` is called once per try. Raises what `pieces` raises; then there is no object.
        """
        if size_bytes <= _PART_BYTES:
            data = b"".join(pieces())
            self._retried(lambda: self._client.put(name, data, use_multipart=False))
            return
        part = max(_PART_BYTES, -(-size_bytes // _MAX_PARTS))
        self._retried(
            lambda: self._client.put(name, iter(pieces()), chunk_size=part, max_concurrency=4)
        )

    def put_stream(self, name: str, pieces: Iterator[Any], size_bytes: int) -> None:
        """Make an object of pieces that exist only once; it appears whole or not at all.

        `size_bytes` is about how large it will be. The client tries a part again; this does not.
        """
        held, size = [], 0
        try:
            for piece in pieces:
                held.append(piece)
                size += len(piece)
                if size > _PART_BYTES:
                    break
            else:
                self._retried(lambda: self._client.put(name, b"".join(held), use_multipart=False))
                return
            part = max(_PART_BYTES, -(-2 * size_bytes // _MAX_PARTS))
            rest = itertools.chain(held, pieces)
            self._client.put(name, rest, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)
        except Exception as error:
            raise _translated(error) from error

    def create(self, name: str, data: bytes) -> bool:
        """Make a small object unless there is one; whether it was made.

        An answer that got lost looks like a refusal at the second try: read it back to be sure.
        """
        try:
            self._retried(lambda: self._client.put(name, data, mode="create"))
        except _Taken:
            return False
        return True

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone are fine."""
        for name in names:
            try:
                self._retried(lambda name=name: self._client.delete(name))  # type: ignore[misc]
            except NotFound:
                continue

    def _retried(self, action: Callable[[], _T]) -> _T:
        for failures in range(1, self._attempts + 1):
            try:
                return action()
            except Exception as error:
                known = _translated(error)
                if not isinstance(known, CheckpointUnavailable) or failures == self._attempts:
                    raise known from error
            self._pause(backoff_s(failures, first_s=0.2, max_s=10.0, rng=self._rng))
        raise AssertionError("not reached")


class _Taken(Exception):
    """The object exists already."""


def _translated(error: Exception) -> Exception:
    """What the caller sees. Errors of our own and of the local disk are not the store's."""
    kind = type(error).__name__
    module = type(error).__module__
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return _Taken()
    if isinstance(error, FileNotFoundError) and error.errno is None:
        return NotFound("there is no such object")
    if "non-partial response" in str(error):
        return NotSupported("the store does not serve parts of objects")
    # A listing that is refused comes as a general error.
    refused = "status code: 403" in str(error) or "status code: 401" in str(error)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or refused:
        return PermissionDenied(brief(error), "check the credentials and the rights on this prefix")
    if module.startswith("obstore") or isinstance(error, ConnectionError | TimeoutError):
        return CheckpointUnavailable(brief(error))
    return error
