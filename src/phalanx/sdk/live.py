"""The routes that follow jobs: events of all of them, and events, metrics and output of one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from pydantic import TypeAdapter

from phalanx.errors import ServerUnavailable, TooManyRequests
from phalanx.schemas.api.jobs import EventView, FeedPage
from phalanx.schemas.api.telemetry import LivePoint, LogLine
from phalanx.sdk.transport import V1, Transport, raise_for, unreachable

# The server sends a comment every 15 seconds.
_SILENCE_S = 45.0
_PAUSE_S = 1.0
PATIENCE_S = 60.0
"""How long a stream is tried again that no server answers."""
_BODIES: dict[str, TypeAdapter[Any]] = {
    "event": TypeAdapter(EventView),
    "metrics": TypeAdapter(list[LivePoint]),
    "logs": TypeAdapter(list[LogLine]),
}


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """One message of a live view, and the place behind it, from which `begin` continues.

    `kind` says what `body` is: with `event` an EventView, with `metrics` a list of LivePoint, with `logs`
    a list of LogLine.
    """

    kind: Literal["event", "metrics", "logs"]
    body: Any
    place: str


class LiveCalls(Transport):
    """One method for each route of live views; `client.live`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def feed(
        self,
        *,
        project: str | None = None,
        jobs: Sequence[int] = (),
        kinds: Sequence[str] = (),
        after: int = 0,
        wait_s: float = 0.0,
    ) -> FeedPage:
        """A page of events of all jobs after feed number `after`, oldest first."""
        params = {
            **{"project": project, "job": list(jobs), "kind": list(kinds)},
            **{"after": after, "wait_s": wait_s},
        }
        return self._get(f"{V1}/events", FeedPage, params, wait_s)

    def follow(
        self,
        *,
        project: str | None = None,
        jobs: Sequence[int] = (),
        kinds: Sequence[str] = (),
        begin: str = "now",
    ) -> Iterator[LiveMessage]:
        """Events of all jobs as they happen; `begin` is a feed number. It never ends by itself.

        A lost connection is made again, and no event is lost or repeated. Raises ServerUnavailable when no
        server has answered for a minute.
        """
        params = {"project": project, "job": list(jobs), "kind": list(kinds), "from": begin}
        return self._follow(f"{V1}/events/stream", params)

    def follow_job(
        self,
        num: int,
        *,
        include: Sequence[Literal["events", "metrics", "logs"]] = ("events",),
        begin: str = "",
    ) -> Iterator[LiveMessage]:
        """What is new of one job, from its first event on, until it has ended.

        Lost connections as with `follow`. Raises NotFound.
        """
        params = {"include": list(include), "from": begin}
        return self._follow(f"{V1}/jobs/{num}/stream", params)

    def _follow(self, path: str, params: Mapping[str, Any]) -> Iterator[LiveMessage]:
        given = {key: one for key, one in params.items() if one not in (None, [])}
        place = ""
        failing_since: float | None = None
        while True:
            try:
                for kind, data, behind in self._messages(path, given, place):
                    place = behind
                    failing_since = None
                    if kind == "end":
                        if '"done"' in data:
                            return
                        break
                    if kind in _BODIES:
                        body = _BODIES[kind].validate_json(data)
                        yield LiveMessage(kind, body, place)  # type: ignore[arg-type]
            except (ServerUnavailable, TooManyRequests) as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since >= PATIENCE_S:
                    raise error from None
            time.sleep(_PAUSE_S)

    def _messages(
        self, path: str, params: Mapping[str, Any], place: str
    ) -> Iterator[tuple[str, str, str]]:
        """Kind, data and place of each message of one connection."""
        headers = {"Last-Event-ID": place} if place else {}
        try:
            with self._http.stream(
                "GET", path, params=dict(params), headers=headers, timeout=_SILENCE_S
            ) as response:
                if not response.is_success:
                    response.read()
                    raise_for(response)
                yield from decode(response.iter_lines(), place)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error


def decode(lines: Iterator[str], place: str = "") -> Iterator[tuple[str, str, str]]:
    """Kind, data and place of server-sent events, as the HTML standard reads them.

    An `id` without data moves the place of the messages after it; a message that was cut off is dropped.
    """
    kind = ""
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield kind or "message", "\n".join(data), place
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            place = value
