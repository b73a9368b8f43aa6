"""`PhalanxClient`: one method per route."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter

from phalanx.schemas.api.jobs import (
    CheckpointView,
    EventPage,
    EventView,
    JobPage,
    JobView,
    StopRequest,
    SubmitRequest,
    SubmitResponse,
)
from phalanx.schemas.api.server import HelloRequest, HelloResponse, InfoView
from phalanx.schemas.api.telemetry import (
    LogPage,
    MetricsView,
    ProfileRequest,
    ProfilesView,
    RequestTicket,
    StacksView,
)
from phalanx.sdk.answers import raise_for, read, unreachable, written
from phalanx.sdk.estate import EstateCalls

M = TypeVar("M", bound=BaseModel)
_ANSWER_S = 30.0
_UPLOAD_S = 600.0
_V1 = "/api/v1"


class PhalanxClient(EstateCalls):
    """A client of one server. Every method raises ServerUnavailable when none answers.

    `transport` takes the place of the network in tests. Not safe for several threads.
    """

    def __init__(
        self, url: str, token: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_ANSWER_S,
            transport=transport,
            trust_env=False,  # a proxy of the environment has no business on loopback
            verify=_trusted(self.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    # -- the server --------------------------------------------------------------------------------

    def is_healthy(self) -> bool:
        """Whether a server answers; never raises for a server that does not."""
        try:
            answer = self._http.get("/healthz", timeout=5.0)
            return answer.is_success and bool(answer.json().get("status") == "ok")
        except (httpx.HTTPError, ValueError, AttributeError):
            return False

    def info(self) -> InfoView:
        """Who answers."""
        return self._get(f"{_V1}/info", InfoView)

    def hello(self, client: str = "") -> HelloResponse:
        """Say that a client is here; an embedded server stays for it."""
        body = HelloRequest(client=client)
        return self._post(f"{_V1}/clients/hello", body, HelloResponse)

    # -- code --------------------------------------------------------------------------------------

    def has_code(self, digest: str) -> bool:
        """Whether an archive of that SHA-256 has been uploaded."""
        response = self._send("HEAD", f"{_V1}/code/{digest}")
        return response.status_code == 200

    def put_code(self, digest: str, archive: bytes | Iterable[bytes]) -> None:
        """Upload a tar archive. Raises UserError when it is not what its digest says, or not safe."""
        raise_for(self._send("PUT", f"{_V1}/code/{digest}", content=archive, timeout=_UPLOAD_S))

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitResponse:
        """Submit a job, or only check its spec. Raises SpecInvalid with every problem."""
        params = {"dry_run": "true"} if dry_run else {}
        return self._post(f"{_V1}/jobs", request, SubmitResponse, params)

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        project: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> JobPage:
        """One page of jobs, newest first."""
        wanted = {
            "state": list(states), "project": project, "owner": owner, "name": name,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "before": before, "limit": limit,
        }  # fmt: skip
        return self._get(f"{_V1}/jobs", JobPage, wanted)

    def job(self, num: int) -> JobView:
        """One job with ranks, progress and lineage. Raises NotFound."""
        return self._get(f"{_V1}/jobs/{num}", JobView)

    def events(self, num: int, *, after: int = 0, wait_s: float = 0.0) -> EventPage:
        """The job's story behind `after`; waits up to `wait_s` for news."""
        params = {"after": after, "wait_s": wait_s}
        return self._get(f"{_V1}/jobs/{num}/events", EventPage, params, wait_s)

    def history(self, num: int, *, after: int = 0) -> Iterator[EventView]:
        """Every event that is there now, over all pages."""
        while True:
            page = self.events(num, after=after)
            yield from page.events
            if not page.events:
                return
            after = page.cursor

    def logs(
        self,
        num: int,
        *,
        ranks: Sequence[int] = (),
        stream: Literal["out", "err"] | None = None,
        tail: int | None = None,
        cursor: str | None = None,
        wait_s: float = 0.0,
        role: str | None = None,
    ) -> LogPage:
        """Lines behind `cursor` in the order of their arrival; waits up to `wait_s` for some.

        With `role`, only its lines, and `ranks` count in it.
        """
        params = {
            "rank": list(ranks), "stream": stream, "tail": tail, "cursor": cursor,
            "wait_s": wait_s, "role": role,
        }  # fmt: skip
        return self._get(f"{_V1}/jobs/{num}/logs", LogPage, params, wait_s)

    def metrics(
        self,
        num: int,
        *,
        names: Sequence[str] = (),
        ranks: Sequence[int] = (),
        after_step: int = -1,
        max_points: int = 1000,
        role: str | None = None,
    ) -> MetricsView:
        """Series by name and rank, thinned to `max_points` each.

        With `role`, only its series, and `ranks` count in it.
        """
        params = {
            "name": list(names), "rank": list(ranks), "after_step": after_step,
            "max_points": max_points, "role": role,
        }  # fmt: skip
        return self._get(f"{_V1}/jobs/{num}/metrics", MetricsView, params)

    def checkpoints(self, num: int) -> list[CheckpointView]:
        """The job's checkpoints, oldest first."""
        content = self._bytes(f"{_V1}/jobs/{num}/checkpoints")
        return TypeAdapter(list[CheckpointView]).validate_json(content)

    def ask_stacks(self, num: int) -> RequestTicket:
        """Have every rank write down where it is. Raises Conflict where none runs."""
        return self._post(f"{_V1}/jobs/{num}/stacks", None, RequestTicket)

    def stacks(
        self, num: int, *, asked: RequestTicket | None = None, wait_s: float = 0.0
    ) -> StacksView:
        """Stacks that are kept; waits up to `wait_s` for all answers to what was asked."""
        params: dict[str, Any] = {"wait_s": wait_s}
        if asked is not None:
            params |= asked.model_dump()
        return self._get(f"{_V1}/jobs/{num}/stacks", StacksView, params, wait_s)

    def ask_profile(self, num: int, wish: ProfileRequest) -> RequestTicket:
        """Have the ranks profile their next steps. Raises Conflict where none runs."""
        return self._post(f"{_V1}/jobs/{num}/profiles", wish, RequestTicket)

    def profiles(
        self, num: int, *, asked: RequestTicket | None = None, wait_s: float = 0.0
    ) -> ProfilesView:
        """Profiles that are kept; waits up to `wait_s` for the answer to what was asked."""
        params: dict[str, Any] = {"wait_s": wait_s}
        if asked is not None:
            params |= asked.model_dump()
        return self._get(f"{_V1}/jobs/{num}/profiles", ProfilesView, params, wait_s)

    def stop(
        self, num: int, *, goal: Literal["cancel", "pause"] = "cancel", grace_s: float | None = None
    ) -> JobView:
        """Cancel or pause a job. Raises Conflict for one that is over."""
        body = StopRequest(goal=goal, grace_s=grace_s)
        return self._post(f"{_V1}/jobs/{num}/stop", body, JobView)

    def resume(self, num: int) -> JobView:
        """Put a paused job back into the queue."""
        return self._post(f"{_V1}/jobs/{num}/resume", None, JobView)

    # -- calls -------------------------------------------------------------------------------------

    def _get(
        self,
        path: str,
        model: type[M],
        params: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> M:
        return read(model, self._ask(path, params, wait_s))

    def _bytes(
        self, path: str, params: Mapping[str, Any] | None = None, wait_s: float = 0.0
    ) -> bytes:
        return self._ask(path, params, wait_s).content

    def _ask(self, path: str, params: Mapping[str, Any] | None, wait_s: float) -> httpx.Response:
        given = {key: one for key, one in (params or {}).items() if one is not None}
        response = self._send("GET", path, params=given, timeout=_ANSWER_S + wait_s)
        raise_for(response)
        return response

    def _post(
        self,
        path: str,
        body: BaseModel | None,
        model: type[M],
        params: Mapping[str, str] | None = None,
    ) -> M:
        content = b"{}" if body is None else written(body)
        headers = {"Content-Type": "application/json"}
        response = self._send("POST", path, content=content, headers=headers, params=params)
        raise_for(response)
        return read(model, response)

    def _delete(self, path: str) -> None:
        raise_for(self._send("DELETE", path))

    def _send(self, method: str, path: str, **rest: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **rest)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Whom to trust. Reading the authorities takes longer than a call, so not where none is asked."""
    if url.startswith("https:"):
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody
