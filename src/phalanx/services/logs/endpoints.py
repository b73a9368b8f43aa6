"""Send lines to Loki, Elasticsearch, or a collector of OpenTelemetry, and judge the answers.

A request that an endpoint refuses for what is in it is halved until the lines are found that it does not
take. Everything else is tried again later: also what only an operator can mend, such as a wrong password.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from phalanx.core.logs.export import ExportedLine, bulk_body, loki_body, otlp_body
from phalanx.errors import PlatformError
from phalanx.kit.text import shorten
from phalanx.services.guarded_http import GuardedHttp, HttpAnswer

ANSWER_BYTES = 1 << 20
"""The most of an answer that is read: Elasticsearch answers for each line."""
REQUEST_LINES = 2000
REQUEST_BYTES = 1 << 20
"""Output in one request; the last line may exceed it."""
_MOST_HALVES = 64
_REFUSED = frozenset({400, 413, 422})
_AGENT = "phalanx-logs"


class SenderKind(StrEnum):
    """What an endpoint is."""

    LOKI = "loki"
    ELASTICSEARCH = "elasticsearch"
    OTLP = "otlp"


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """One sender. The URL and the credentials are read at each use, so that files may change."""

    name: str  # in the settings
    kind: SenderKind
    url: Callable[[], str] = field(repr=False)  # of the endpoint, without the path of its API
    authorization: Callable[[], str] = field(default=lambda: "", repr=False)  # the header's value
    tenant: str = ""  # of Loki
    index: str = "phalanx-logs"  # of Elasticsearch
    projects: tuple[str, ...] = ()  # only jobs of these are sent; none: all


@dataclass(frozen=True, slots=True)
class LogSenders:
    """All senders of a control plane."""

    senders: tuple[SenderConfig, ...] = ()
    cluster: str = ""  # name of this installation; empty: it has none
    allow_private: bool = False  # whether endpoints may have private addresses, and no TLS


class SendFailed(Exception):
    """The endpoint has not taken the lines, and may take them later."""


class LineSender(Protocol):
    """Sends lines to the endpoint of a sender."""

    def __call__(self, config: SenderConfig, lines: Sequence[ExportedLine], now: int, /) -> int:
        """Send all lines once; returns the number that the endpoint refused. Raises SendFailed."""
        ...


@dataclass(frozen=True, slots=True)
class LogEndpoints:
    """The sender of a control plane. `may_act` raises where another process leads by now."""

    http: GuardedHttp
    cluster: str
    may_act: Callable[[], None]

    def __call__(self, config: SenderConfig, lines: Sequence[ExportedLine], now: int) -> int:
        """Send all lines, in requests of a limited size."""
        refused, at = 0, 0
        while at < len(lines):
            end, size = at, 0
            while end < len(lines) and end - at < REQUEST_LINES and size < REQUEST_BYTES:
                size += len(lines[end].line.data)
                end += 1
            refused += self._halved(config, lines[at:end], now)
            at = end
        return refused

    def _halved(self, config: SenderConfig, lines: Sequence[ExportedLine], now: int) -> int:
        """Send lines; where they are refused, their halves. Returns the number that is refused alone."""
        todo, refused, left = [lines], 0, _MOST_HALVES
        while todo:
            some = todo.pop()
            found = self._post(config, some, now)
            if found is not None:
                refused += found
            elif len(some) == 1 or left <= 0:
                refused += len(some)
            else:
                left -= 1
                half = len(some) // 2
                todo += [some[half:], some[:half]]
        return refused

    def _post(self, config: SenderConfig, lines: Sequence[ExportedLine], now: int) -> int | None:
        """One request; returns the number of refused lines, None: the endpoint refused the request."""
        self.may_act()
        try:
            url, body, headers = self._request(config, lines, now)
            answer = self.http.post(url, body, headers)
        except PlatformError as error:
            raise SendFailed(shorten(error.message, 300)) from None
        if 200 <= answer.status < 300:
            return _refused(config.kind, answer, len(lines))
        if answer.status in _REFUSED:
            return None
        raise SendFailed(f"the endpoint answered {answer.status}: {shorten(answer.text, 200)}")

    def _request(
        self, config: SenderConfig, lines: Sequence[ExportedLine], now: int
    ) -> tuple[str, bytes, dict[str, str]]:
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": _AGENT,
        }
        if given := config.authorization():
            headers["authorization"] = given
        url = config.url().rstrip("/")
        match config.kind:
            case SenderKind.LOKI:
                if config.tenant:
                    headers["x-scope-orgid"] = config.tenant
                return f"{url}/loki/api/v1/push", loki_body(lines, self.cluster), headers
            case SenderKind.ELASTICSEARCH:
                headers["content-type"] = "application/x-ndjson"
                path = "/_bulk?filter_path=errors,items.*.status"
                return url + path, bulk_body(lines, self.cluster, config.index), headers
            case SenderKind.OTLP:
                return f"{url}/v1/logs", otlp_body(lines, self.cluster, now), headers


def _refused(kind: SenderKind, answer: HttpAnswer, num_lines: int) -> int:
    """The number of lines that were not taken, of a request that was. Raises SendFailed."""
    if kind is SenderKind.LOKI:
        return 0
    try:
        found = json.loads(answer.body or b"{}")
        if kind is SenderKind.OTLP:
            partial = found.get("partialSuccess") or {}
            return min(num_lines, max(0, int(partial.get("rejectedLogRecords") or 0)))
        if found["errors"] is False:
            return 0
        statuses = [int(next(iter(one.values()))["status"]) for one in found["items"]]
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        raise SendFailed("the answer of the endpoint cannot be read") from None
    later = [one for one in statuses if one == 429 or one >= 500]
    if later or len(statuses) != num_lines:
        raise SendFailed(f"the endpoint has not taken {len(later)} of {num_lines} lines yet")
    return sum(not 200 <= one < 300 for one in statuses)
