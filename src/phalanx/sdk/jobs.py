"""The routes about jobs: submission, state, events, output, metrics, checkpoints, stop and resume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from phalanx.kit.text import random_hex
from phalanx.schemas.api.jobs import (
    BatchRequest,
    BatchResponse,
    ChangeRequest,
    CheckpointView,
    CloneRequest,
    EventPage,
    EventView,
    JobPage,
    JobView,
    ResumeRequest,
    StopRequest,
    SubmitRequest,
    SubmitResponse,
)
from phalanx.schemas.api.provenance import ProvenanceDiffView, ProvenanceView
from phalanx.schemas.api.telemetry import (
    CurvesView,
    LevelName,
    LogPage,
    LogSearchPage,
    MetricsView,
    PostedPoint,
    PostMetricsRequest,
    ProfileRequest,
    ProfilesView,
    RequestTicket,
    SavesView,
    StacksView,
    StopAnswer,
)
from phalanx.sdk.transport import V1, Transport, raise_for

_UPLOAD_S = 600.0


def _query_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


class JobCalls(Transport):
    """One method for each route about jobs and their code."""

    # -- code --------------------------------------------------------------------------------------

    def has_code(self, digest: str) -> bool:
        """Whether an archive with that SHA-256 has been uploaded."""
        response = self._send("HEAD", f"{V1}/code/{digest}")
        return response.status_code == 200

    def put_code(self, digest: str, archive: bytes | Iterable[bytes]) -> None:
        """Upload a tar archive. Raises UserError when its digest differs or its paths are unsafe."""
        raise_for(self._send("PUT", f"{V1}/code/{digest}", content=archive, timeout=_UPLOAD_S))

    # -- jobs --------------------------------------------------------------------------------------

    def submit(
        self, request: SubmitRequest, *, dry_run: bool = False, key: str | None = None
    ) -> SubmitResponse:
        """Submit a job, or only check its spec. Raises SpecInvalid with every problem.

        When its answer is lost, it is repeated with the same idempotency key and makes one job.
        `key` is that key, for a caller that repeats a submission itself; absent: each call has a new one.
        Raises Conflict for the key of another submission of the last day.
        """
        params = {"dry_run": "true"} if dry_run else {}
        return self._post(f"{V1}/jobs", request, SubmitResponse, params, key=key or random_hex(32))

    def submit_batch(
        self, requests: Sequence[SubmitRequest], *, dry_run: bool = False, key: str | None = None
    ) -> BatchResponse:
        """Submit several jobs and arrays, all or none. Raises SpecInvalid with every problem of every spec.

        `depends_on` may name another job of the batch by its name. `key` as for `submit`.
        """
        params = {"dry_run": "true"} if dry_run else {}
        body = BatchRequest(jobs=list(requests))
        return self._post(
            f"{V1}/jobs/batch", body, BatchResponse, params, key=key or random_hex(32)
        )

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        sort: str = "-num",
        cursor: str | None = None,
        limit: int = 100,
        **filters: Any,
    ) -> JobPage:
        """One page of jobs, newest first unless `sort` says otherwise, such as `name` or `-submitted_at`.

        `cursor` is that of the page before. `filters` are the others of the route `GET /api/v1/jobs`, such
        as `project`, `owner`, `name` (with `*`), `framework`, `pool` and `submitted_from`.
        Archived jobs are left out unless `archived` is `include` or `only`.
        """
        wanted = {
            **filters,
            "state": list(states),
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "sort": sort,
            "cursor": cursor,
            "limit": limit,
        }
        given = {key: _query_value(one) for key, one in wanted.items()}
        return self._get(f"{V1}/jobs", JobPage, given)

    def every_job(self, **filters: Any) -> Iterator[JobView]:
        """The jobs of all pages, with the arguments of `jobs` except `cursor`."""
        cursor = None
        while True:
            page = self.jobs(**filters, cursor=cursor)
            yield from page.jobs
            cursor = page.cursor
            if cursor is None:
                return

    def job(self, num: int) -> JobView:
        """One job with ranks, progress and lineage. Raises NotFound."""
        return self._get(f"{V1}/jobs/{num}", JobView)

    def change(self, num: int, changes: ChangeRequest, *, if_match: str | None = None) -> JobView:
        """Change settings of a job; what `changes` leaves out stays.

        `if_match` is the `etag` of a JobView: where the settings have changed since, PreconditionFailed is
        raised. Raises SpecInvalid with every problem, and Conflict for a setting that the state fixes.
        """
        return self._patch(f"{V1}/jobs/{num}", changes, JobView, if_match)

    def clone(
        self, num: int, request: CloneRequest | None = None, *, key: str | None = None
    ) -> SubmitResponse:
        """Submit a job again: the same spec, code, environment and parameters, with changes.

        Raises NotFound for code that is not stored any more, CheckpointNotFound, and SpecInvalid with every
        problem. `key` as for `submit`.
        """
        body = request or CloneRequest()
        return self._post(f"{V1}/jobs/{num}/clone", body, SubmitResponse, key=key or random_hex(32))

    def events(self, num: int, *, after: int = 0, wait_s: float = 0.0) -> EventPage:
        """Events after sequence number `after`; waits up to `wait_s` seconds for the first one."""
        params = {"after": after, "wait_s": wait_s}
        return self._get(f"{V1}/jobs/{num}/events", EventPage, params, wait_s)

    def history(self, num: int, *, after: int = 0) -> Iterator[EventView]:
        """Every event that is stored now, over all pages."""
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
        """Lines after `cursor` in the order of arrival; waits up to `wait_s` seconds for the first one.

        With `role`, only lines of that role; `ranks` are then numbers within the role.
        """
        params = {
            "rank": list(ranks),
            "stream": stream,
            "tail": tail,
            "cursor": cursor,
            "wait_s": wait_s,
            "role": role,
        }
        return self._get(f"{V1}/jobs/{num}/logs", LogPage, params, wait_s)

    def search_logs(  # noqa: PLR0913
        self,
        num: int,
        *,
        text: str | None = None,
        regex: str | None = None,
        level: LevelName | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        ranks: Sequence[int] = (),
        stream: Literal["out", "err"] | None = None,
        role: str | None = None,
        limit: int = 200,
        cursor: str | None = None,
    ) -> LogSearchPage:
        """Stored lines that meet all conditions, from `cursor` on; `limit` 0 only counts."""
        params: dict[str, Any] = {"text": text, "regex": regex, "level": level}
        params |= {"since": _query_value(since), "until": _query_value(until)}
        params |= {"rank": list(ranks), "stream": stream, "role": role}
        params |= {"limit": limit, "cursor": cursor}
        return self._get(f"{V1}/jobs/{num}/logs/search", LogSearchPage, params)

    def metrics(
        self,
        num: int,
        *,
        names: Sequence[str] = (),
        ranks: Sequence[int] = (),
        after_step: int = -1,
        to_step: int | None = None,
        max_points: int = 1000,
        role: str | None = None,
    ) -> MetricsView:
        """Series by name and rank, downsampled to `max_points` each.

        With `role`, only series of that role; `ranks` are then numbers within the role.
        """
        params = {
            "name": list(names),
            "rank": list(ranks),
            "after_step": after_step,
            "to_step": to_step,
            "max_points": max_points,
            "role": role,
        }
        return self._get(f"{V1}/jobs/{num}/metrics", MetricsView, params)

    def compare_metrics(
        self,
        nums: Sequence[int],
        names: Sequence[str],
        *,
        ranks: Sequence[int] = (0,),
        after_step: int = -1,
        to_step: int | None = None,
        max_points: int = 1000,
        reduce: Literal["extremes", "mean", "last"] = "extremes",
    ) -> CurvesView:
        """Curves of up to 500 jobs at once; `reduce` says what an interval of a long curve is shown as."""
        params = {
            "job": list(nums),
            "name": list(names),
            "rank": list(ranks),
            "after_step": after_step,
            "to_step": to_step,
            "max_points": max_points,
            "reduce": reduce,
        }
        return self._get_curves(f"{V1}/metrics", params)

    def post_metrics(
        self, num: int, points: Sequence[PostedPoint], *, rank: int | None = None
    ) -> StopAnswer:
        """Add metrics of a rank of a job, and read whether it should stop; none at all: only read that.

        The client needs the token of a rank (`PHALANX_METRICS_TOKEN`), which permits nothing else.
        """
        params = {} if rank is None else {"rank": str(rank)}
        body = PostMetricsRequest(points=list(points))
        return self._post(f"{V1}/jobs/{num}/metrics", body, StopAnswer, params)

    def checkpoints(self, num: int) -> list[CheckpointView]:
        """The job's checkpoints, oldest first."""
        return self._get(f"{V1}/jobs/{num}/checkpoints", list[CheckpointView])

    def provenance(self, num: int) -> ProvenanceView:
        """What the job was made of: source, command, environment, parameters, software, data and places."""
        return self._get(f"{V1}/jobs/{num}/provenance", ProvenanceView)

    def provenance_diff(self, num: int, against: int = 0) -> ProvenanceDiffView:
        """What differs between two jobs in what they were made of; `before` are values of `against`.

        Without it, the job that the first one is a clone of.
        """
        path = f"{V1}/jobs/{num}/provenance/diff"
        return self._get(path, ProvenanceDiffView, {"against": against})

    def ask_stacks(self, num: int) -> RequestTicket:
        """Request the stacks of every rank. Raises Conflict when no rank runs."""
        path = f"{V1}/jobs/{num}/stacks"
        return self._post(path, None, RequestTicket, key=random_hex(32))

    def stacks(
        self, num: int, *, asked: RequestTicket | None = None, wait_s: float = 0.0
    ) -> StacksView:
        """Stored stacks; waits up to `wait_s` seconds for the complete result of the request `asked`."""
        params: dict[str, Any] = {"wait_s": wait_s}
        if asked is not None:
            params |= asked.model_dump()
        return self._get(f"{V1}/jobs/{num}/stacks", StacksView, params, wait_s)

    def ask_profile(self, num: int, wish: ProfileRequest) -> RequestTicket:
        """Request a profile of the next steps. Raises Conflict when no rank runs."""
        path = f"{V1}/jobs/{num}/profiles"
        return self._post(path, wish, RequestTicket, key=random_hex(32))

    def profiles(
        self, num: int, *, asked: RequestTicket | None = None, wait_s: float = 0.0
    ) -> ProfilesView:
        """Stored profiles; waits up to `wait_s` seconds for the result of the request `asked`."""
        params: dict[str, Any] = {"wait_s": wait_s}
        if asked is not None:
            params |= asked.model_dump()
        return self._get(f"{V1}/jobs/{num}/profiles", ProfilesView, params, wait_s)

    def ask_save(self, num: int) -> RequestTicket:
        """Request a checkpoint of a running job. Raises Conflict when no rank has made a step."""
        return self._post(f"{V1}/jobs/{num}/saves", None, RequestTicket, key=random_hex(32))

    def saves(
        self, num: int, *, asked: RequestTicket | None = None, wait_s: float = 0.0
    ) -> SavesView:
        """Requested checkpoints; waits up to `wait_s` seconds until that of `asked` is committed."""
        params: dict[str, Any] = {"wait_s": wait_s}
        if asked is not None:
            params |= asked.model_dump()
        return self._get(f"{V1}/jobs/{num}/saves", SavesView, params, wait_s)

    def stop(
        self, num: int, *, goal: Literal["cancel", "pause"] = "cancel", grace_s: float | None = None
    ) -> JobView:
        """Cancel or pause a job. Raises Conflict for a job that has ended."""
        body = StopRequest(goal=goal, grace_s=grace_s)
        return self._post(f"{V1}/jobs/{num}/stop", body, JobView)

    def resume(self, num: int, *, begin_anew: bool = False) -> JobView:
        """Requeue a paused job. Raises Conflict for a job in another state.

        With `begin_anew` it starts at step 0; the checkpoints that it has are kept, and not resumed from.
        """
        body = ResumeRequest(begin_anew=True) if begin_anew else None
        return self._post(f"{V1}/jobs/{num}/resume", body, JobView)
