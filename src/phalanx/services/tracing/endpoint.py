"""An OpenTelemetry endpoint that takes spans: OTLP over HTTP, in JSON."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from phalanx.errors import ServerUnavailable

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 10.0
_MOST_BYTES = 64 * 1024
# Answers after which the same request may succeed, as OTLP names them.
_AGAIN = frozenset({408, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Where spans are sent. Without a URL, none are."""

    url: str = ""  # with its path
    headers: Callable[[], Mapping[str, str]] = dict  # read at each use; raises UserError
    give_up_s: float = 3600.0  # spans that are older are dropped


class OtlpEndpoint:
    """Sends requests of OTLP over one kept connection. Not safe for several threads."""

    def __init__(self, config: TraceConfig, trust: ssl.SSLContext) -> None:
        self._config = config
        self._http = httpx.Client(timeout=_TIMEOUT_S, verify=trust)

    def send(self, document: Mapping[str, Any]) -> int:
        """Send spans; returns how many were refused for good.

        Raises ServerUnavailable where the same request may succeed later, UserError for a header that
        cannot be read.
        """
        body = json.dumps(document).encode()
        headers = {**self._config.headers(), "content-type": "application/json"}
        try:
            with self._http.stream(
                "POST", self._config.url, content=body, headers=headers
            ) as answer:
                text = _beginning(answer)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerUnavailable(f"{self._place} takes no spans: {error}") from None
        if answer.status_code in _AGAIN:
            raise ServerUnavailable(
                f"{self._place} takes no spans: it answers {answer.status_code}"
            )
        if not answer.is_success:
            _LOG.warning("%s refuses spans: it answers %d", self._place, answer.status_code)
            return num_spans(document)
        return _rejected(text)

    @property
    def _place(self) -> str:
        """The endpoint without what a URL may have of secrets."""
        parts = urlsplit(self._config.url)
        return f"the OpenTelemetry endpoint {parts.hostname}:{parts.port or parts.scheme}"


def num_spans(document: Mapping[str, Any]) -> int:
    """The number of spans in a request."""
    scopes = (one for each in document["resourceSpans"] for one in each["scopeSpans"])
    return sum(len(one["spans"]) for one in scopes)


def _beginning(answer: httpx.Response) -> bytes:
    found = b""
    for chunk in answer.iter_bytes():
        found += chunk
        if len(found) >= _MOST_BYTES:
            break
    return found[:_MOST_BYTES]


def _rejected(text: bytes) -> int:
    """The spans that an answer says were refused; an answer that cannot be read refuses none."""
    try:
        said = json.loads(text or b"{}")
        return max(0, int(said["partialSuccess"]["rejectedSpans"]))
    except (ValueError, TypeError, KeyError):
        return 0
