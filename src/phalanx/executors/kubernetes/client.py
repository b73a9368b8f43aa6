"""Requests to one API server: rate limit, repetition, pages of lists, and streams of changes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.credentials import ClusterAccess
from phalanx.kit.text import shorten

Object = dict[str, Any]

RATE_PER_S, BURST = 50.0, 100.0
# The API server sends a bookmark about once a minute, later under load: a stream that missed two is dead.
SILENT_S = 150.0
# A peer that is gone is noticed by the kernel within these seconds, however busy both programs are.
_IDLE_S, _PROBE_S, _PROBES = 20, 5, 4
_PAGE = 500
_TRIES = 4
_TIMEOUT_S = 20.0
_LONGEST_WAIT_S = 10.0
MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


class KubernetesRefused(Exception):
    """An answer of the API server that is no success: `status`, its `reason` word and its message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class Expired(Exception):
    """The version to continue from is no longer kept; only a new list tells what happened since."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The objects of a list and the version of the API server that they were read at."""

    items: list[Object]
    version: str


class TokenBucket:
    """A limit of requests: `rate` a second, with bursts. `take` waits."""

    def __init__(self, rate: float = RATE_PER_S, burst: float = BURST) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, time.monotonic()
        self._lock = threading.Lock()

    def delay_s(self, now: float) -> float:
        """Take one request; returns how long it has to wait."""
        with self._lock:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1.0
            return max(0.0, -self._tokens / self._rate)

    def take(self) -> None:
        """Wait for the turn of one request."""
        delay = self.delay_s(time.monotonic())
        if delay:
            time.sleep(delay)


class KubernetesClient:
    """One API server. Safe for several threads. Raises ExecutorUnavailable where an answer is unknown."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._bucket = TokenBucket()
        self._streams: set[socket.socket] = set()
        self._closed = False
        transport = httpx.HTTPTransport(
            verify=access.context,
            limits=httpx.Limits(max_connections=40),
            trust_env=False,
            socket_options=_keep_alive(),
        )
        self._http = httpx.Client(
            base_url=access.url,
            transport=transport,
            timeout=httpx.Timeout(_TIMEOUT_S),
            trust_env=False,
        )

    def get(self, path: str) -> Object | None:
        """One object, read from a majority of the API's store; None where there is none."""
        try:
            return self.call("GET", path)
        except KubernetesRefused as refused:
            if refused.status == 404:
                return None
            raise

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        """One request, repeated where the server is busy. Raises KubernetesRefused."""
        content = None if body is None else json.dumps(body).encode()
        for number in range(1, _TRIES + 1):
            self._bucket.take()
            try:
                headers = {**self._access.headers(), "Content-Type": kind}
                answer = self._http.request(
                    method, path, content=content, params=query, headers=headers
                )
            except (httpx.HTTPError, OSError) as error:
                # Also a write may have been done: callers repeat it by name and compare what is there.
                raise ExecutorUnavailable(f"the Kubernetes API does not answer: {error}") from error
            if answer.status_code == 429 or answer.status_code >= 500:
                if number < _TRIES:
                    time.sleep(min(_LONGEST_WAIT_S, _retry_after(answer, number)))
                    continue
                raise ExecutorUnavailable(f"the Kubernetes API is busy: {answer.status_code}")
            return _read(answer)
        raise AssertionError("unreachable")

    def list(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        trim: Callable[[Object], Object] = lambda one: one,
        keep: Callable[[Object], bool] = lambda one: True,
    ) -> Listed:
        """All objects of a collection, page by page; a list that expires midway begins again.

        `trim` takes what is needed of each object that `keep` accepts, so that no whole collection is
        ever held.
        """
        for _ in range(_TRIES):
            try:
                return self._pages(path, dict(query or {}), trim, keep)
            except KubernetesRefused as refused:
                if refused.status != 410:
                    raise
        raise ExecutorUnavailable("the Kubernetes API forgets lists faster than they are read")

    def _pages(
        self,
        path: str,
        query: dict[str, str],
        trim: Callable[[Object], Object],
        keep: Callable[[Object], bool],
    ) -> Listed:
        items: list[Object] = []
        following = ""
        while True:
            page = {**query, "limit": str(_PAGE), **({"continue": following} if following else {})}
            answer = self.call("GET", path, query=page)
            for one in answer.get("items") or []:
                one.get("metadata", {}).pop("managedFields", None)
                if keep(one):
                    items.append(trim(one))
            meta = answer.get("metadata") or {}
            following = meta.get("continue") or ""
            if not following:
                return Listed(items, str(meta.get("resourceVersion", "")))

    @contextmanager
    def watch(
        self, path: str, version: str, query: Mapping[str, str], timeout_s: int
    ) -> Iterator[Iterator[Object]]:
        """A stream of events after `version`. Raises Expired, KubernetesRefused, ExecutorUnavailable."""
        params = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        self._bucket.take()
        try:
            timeout = httpx.Timeout(_TIMEOUT_S, read=SILENT_S)
            headers = self._access.headers()
            with self._http.stream(
                "GET", path, params=params, headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    answer.read()
                    _read(answer)
                with self._tracked(answer):
                    if self._closed:  # while it was opened: nothing would end it any more
                        raise ExecutorUnavailable("the client of the Kubernetes API is closed")
                    yield _events(answer)
        except (httpx.HTTPError, OSError) as error:
            raise ExecutorUnavailable(f"the Kubernetes API does not answer: {error}") from error
        except KubernetesRefused as refused:
            if refused.status == 410:
                raise Expired from refused
            raise

    @contextmanager
    def _tracked(self, answer: httpx.Response) -> Iterator[None]:
        """Remember the socket of an open stream: closing it does not wake a thread that reads it."""
        stream = answer.extensions.get("network_stream")
        found = None if stream is None else stream.get_extra_info("socket")
        if found is not None:
            self._streams.add(found)
        try:
            yield
        finally:
            self._streams.discard(found)

    def close(self) -> None:
        """Close all connections, and end the open streams."""
        self._closed = True
        for one in list(self._streams):
            with suppress(OSError, ValueError):
                one.shutdown(socket.SHUT_RDWR)
        self._http.close()


def _keep_alive() -> list[tuple[int, int, int]]:
    """Socket options with which a connection ends when its peer no longer answers."""
    wanted = {"TCP_KEEPIDLE": _IDLE_S, "TCP_KEEPINTVL": _PROBE_S, "TCP_KEEPCNT": _PROBES}
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in wanted.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            found.append((socket.IPPROTO_TCP, option, value))
    return found


def _events(answer: httpx.Response) -> Iterator[Object]:
    for line in answer.iter_lines():
        if not line.strip():
            continue
        event = json.loads(line)
        if event.get("type") == "ERROR":
            # Errors also come inside a stream that began with success.
            said = event.get("object") or {}
            raise KubernetesRefused(
                int(said.get("code", 500)),
                str(said.get("reason", "")),
                str(said.get("message", "")),
            )
        yield event


def _read(answer: httpx.Response) -> Object:
    try:
        body = answer.json()
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    if answer.is_success:
        return body
    said = str(body.get("message") or f"status {answer.status_code}")
    raise KubernetesRefused(answer.status_code, str(body.get("reason", "")), shorten(said, 500))


def _retry_after(answer: httpx.Response, number: int) -> float:
    try:
        return float(answer.headers["Retry-After"])
    except (KeyError, ValueError):
        return 0.1 * 2.0**number
