"""Routes for jobs: submit, list, show, stop, pause, resume."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from phalanx.core.cost.prices import NANO
from phalanx.core.jobs.model import StopGoal
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import UserError
from phalanx.schemas.api.body import us_of
from phalanx.schemas.api.jobs import (
    SAME_NAMES,
    BatchRequest,
    BatchResponse,
    ChangeRequest,
    CheckpointView,
    CloneRequest,
    EventPage,
    JobPage,
    JobsQuery,
    JobView,
    ResumeRequest,
    StopRequest,
    SubmitRequest,
    SubmitResponse,
)
from phalanx.schemas.api.provenance import ProvenanceDiffView, ProvenanceView
from phalanx.schemas.api.telemetry import (
    ProfileRequest,
    ProfilesView,
    RequestTicket,
    SavesView,
    StacksView,
)
from phalanx.schemas.api.why import WhyView
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import (
    IdempotencyKey,
    JobNum,
    Number,
    StrictRoute,
    Wait,
)
from phalanx.services.batches.submit import check_batch, submit_batch
from phalanx.services.changes import clone, settings
from phalanx.services.cost.estimate import estimate_of_job, estimate_of_spec
from phalanx.services.lifecycle import requests
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.lifecycle.submit import check, submit
from phalanx.services.planning.why import why_view
from phalanx.services.queries import profiles, provenance, saves, stacks, views
from phalanx.store.idempotency import RequestKey
from phalanx.store.listings.jobs import RANGES, JobFilter, ListingRange, Order

_TIMES = ("submitted", "started", "ended")
router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=StrictRoute)


@router.post("", status_code=201, openapi_extra=needs(Permission.JOBS_SUBMIT, Of.BODY))
def post_job(
    here: Here, by: By, request: SubmitRequest, key: IdempotencyKey = None, dry_run: bool = False
) -> SubmitResponse:
    """Submit a job. With `dry_run`, only return the resolved spec.

    A request with the key of an earlier one returns the job of that one; keys are known for a day.
    """
    now = here.clock.now()
    if dry_run:
        accepted = check(here.platform, request, by=by)
        owner = by.owner_of(request.owner)
        expected = estimate_of_spec(here.platform, accepted.spec, owner, now)
        return SubmitResponse(job=None, spec=accepted.resolved, estimate=expected)
    asked = RequestKey.of(key, now, by.actor, "jobs", request.model_dump_json())
    num, spec = submit(here.platform, request, now, asked, by=by)
    expected = estimate_of_job(here.platform, num, now)
    return SubmitResponse(job=views.job_view(here.platform, num), spec=spec, estimate=expected)


@router.post("/batch", status_code=201, openapi_extra=needs(Permission.JOBS_SUBMIT, Of.BODY))
def post_batch(
    here: Here, by: By, request: BatchRequest, key: IdempotencyKey = None, dry_run: bool = False
) -> BatchResponse:
    """Submit several jobs and arrays, all or none. With `dry_run`, only check them.

    A request with the key of an earlier one returns the jobs of that one; keys are known for a day.
    """
    if dry_run:
        check_batch(here.platform, request.jobs, by=by)
        return BatchResponse(jobs=[])
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "batch", request.model_dump_json())
    nums = submit_batch(here.platform, request.jobs, now, asked, by=by)
    return views.batch_view(here.platform, nums)


@router.get("", response_model=JobPage, openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_jobs(here: Here, by: By, query: Annotated[JobsQuery, Query()]) -> Response:
    """A page of jobs, newest first unless `sort` says otherwise; `cursor` is that of the page before.

    Jobs that are submitted meanwhile change no page behind the cursor.
    """
    wanted = JobFilter(
        states=tuple(query.state),
        labels=tuple(_label(one) for one in query.label),
        projects=by.projects(Permission.JOBS_READ),
        ranges=tuple(_ranges(query)),
        archived=_ARCHIVED[query.archived],
        **query.model_dump(include=SAME_NAMES),
    )
    order = Order.parse(query.sort)
    page = views.list_jobs(
        here.platform, wanted, order=order, cursor=query.cursor, limit=query.limit
    )
    # Written in this thread, and in one step: by way of plain values it takes five times as long.
    return Response(page.model_dump_json(), media_type="application/json")


def _ranges(query: JobsQuery) -> Iterator[ListingRange]:
    """The ranges of a query, in the units of the store. Raises UserError for one that is empty."""
    for name in RANGES:
        first, last = (f"{name}_from", f"{name}_to") if name in _TIMES else _limits(name)
        least, end = getattr(query, first), getattr(query, last)
        if least is not None and end is not None and least > end:
            raise UserError(f"{first} is above {last}: no job is in that range", "exchange them")
        if name in _TIMES:
            yield ListingRange(name, least=_micros(least), end=_micros(end))
        elif (least, end) != (None, None):
            yield ListingRange(name, least=_stored(name, least), most=_stored(name, end))


def _limits(name: str) -> tuple[str, str]:
    return f"min_{name}", f"max_{name}"


def _stored(name: str, value: float | Decimal | None) -> float | None:
    if value is None or name != "usd":
        return None if value is None else float(value)
    return int(value * NANO)


_ARCHIVED = {"exclude": False, "only": True, "include": None}


def _micros(at: datetime | None) -> int | None:
    return None if at is None else us_of(at)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UserError(f"{text!r} is not a label", "write key=value")
    return key, value


@router.get("/{num}", openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
def get_job(here: Here, num: JobNum) -> JobView:
    """One job with ranks, progress and lineage. `If-Match` compares the settings, not the progress."""
    return views.job_view(here.platform, num, here.clock.now())


@router.patch("/{num}", openapi_extra=needs(Permission.JOBS_CHANGE, Of.JOB))
def patch_job(here: Here, by: By, num: JobNum, request: ChangeRequest) -> JobView:
    """Change settings of a job: what is left out stays; may be repeated.

    The pool of a job that holds slots cannot change, and of a job that has ended only its name,
    description, labels, tags and group can.
    """
    settings.change(here.platform, num, request, here.clock.now(), by.actor)
    return get_job(here, num)


@router.post("/{num}/clone", status_code=201, openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
def post_clone(
    here: Here, by: By, num: JobNum, request: CloneRequest, key: IdempotencyKey = None
) -> SubmitResponse:
    """Submit a job again with the spec, code, environment and parameters that it had, and changes.

    The caller needs the permission to submit into the project of the new job, too.
    """
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "clone", str(num), request.model_dump_json())
    made = clone.clone(here.platform, num, request, now, by, asked)
    view = views.job_view(here.platform, made.num)
    return SubmitResponse(job=view, spec=dict(made.spec), notes=list(made.notes))


@router.get("/{num}/events", openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
async def get_events(here: Here, num: JobNum, after: Number = 0, wait_s: Wait = 0.0) -> EventPage:
    """The job's events after number `after`; waits up to `wait_s` seconds for new ones."""

    return await here.poll_until(
        (job_topic(num),),
        wait_s,
        lambda: views.event_page(here.platform, num, after=after),
        lambda page: bool(page.events) or page.done,
    )


@router.get("/{num}/checkpoints", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True))
def get_checkpoints(here: Here, num: JobNum) -> list[CheckpointView]:
    """The job's checkpoints, oldest first."""
    return views.list_checkpoints(here.platform, num)


@router.get("/{num}/provenance", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True))
def get_provenance(here: Here, num: JobNum) -> ProvenanceView:
    """What the job was made of: source, command, environment, parameters, software, data and places."""
    return provenance.read_provenance(here.platform, num)


@router.get(
    "/{num}/provenance/diff", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True)
)
def get_provenance_diff(here: Here, by: By, num: JobNum, against: Number = 0) -> ProvenanceDiffView:
    """What differs between the job and the job `against`, which the caller must be able to read.

    Without `against`, the job that it is a clone of; a job that is no clone differs in nothing.
    """
    return provenance.compare_provenance(here.platform, num, against, by)


@router.post("/{num}/stacks", openapi_extra=needs(Permission.JOBS_CHANGE, Of.JOB))
def post_stacks(here: Here, by: By, num: JobNum, key: IdempotencyKey = None) -> RequestTicket:
    """Ask every rank for its stacks; the answers appear at the same path."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "stacks", str(num))
    return stacks.ask_stacks(here.platform, num, now, by.actor, asked)


@router.get("/{num}/stacks", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True))
async def get_stacks(
    here: Here,
    num: JobNum,
    attempt: Number = 0,
    generation: Number = 0,
    request: Number = 0,
    wait_s: Wait = 0.0,
) -> StacksView:
    """Stored stacks; waits up to `wait_s` seconds until every rank has answered a request."""

    look = partial(stacks.read_stacks, here.platform, num)
    asked = (attempt, generation, request)

    def whole(view: StacksView) -> bool:
        found = [one for one in view.captures if one.answers == asked]
        over = (view.attempt, view.generation) != (attempt, generation)
        return over or any(len(one.ranks) >= view.world_size for one in found)

    return await here.poll_until((job_topic(num),), wait_s, look, whole)


@router.post("/{num}/profiles", openapi_extra=needs(Permission.JOBS_CHANGE, Of.JOB))
def post_profile(
    here: Here, by: By, num: JobNum, request: ProfileRequest, key: IdempotencyKey = None
) -> RequestTicket:
    """Ask the ranks to profile their next steps; the answer appears at the same path."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "profiles", str(num), request.model_dump_json())
    return profiles.ask_profile(here.platform, num, request, now, by.actor, asked)


@router.get("/{num}/profiles", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True))
async def get_profiles(
    here: Here,
    num: JobNum,
    attempt: Number = 0,
    generation: Number = 0,
    request: Number = 0,
    wait_s: Wait = 0.0,
) -> ProfilesView:
    """Stored profiles; waits up to `wait_s` seconds for the answer to a request."""

    look = partial(profiles.read_profiles, here.platform, num)
    asked = (attempt, generation, request)

    def whole(view: ProfilesView) -> bool:
        over = (view.attempt, view.generation) != (attempt, generation)
        return over or any(one.answers == asked for one in view.profiles)

    return await here.poll_until((job_topic(num),), wait_s, look, whole)


@router.post("/{num}/saves", openapi_extra=needs(Permission.JOBS_CHANGE, Of.JOB))
def post_save(here: Here, by: By, num: JobNum, key: IdempotencyKey = None) -> RequestTicket:
    """Ask the ranks to save a checkpoint; what becomes of it appears at the same path."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "saves", str(num))
    return saves.ask_save(here.platform, num, now, by.actor, asked)


@router.get("/{num}/saves", openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
async def get_saves(
    here: Here,
    num: JobNum,
    attempt: Number = 0,
    generation: Number = 0,
    request: Number = 0,
    wait_s: Wait = 0.0,
) -> SavesView:
    """Requested checkpoints; waits up to `wait_s` seconds until the requested one is committed."""

    look = partial(saves.read_saves, here.platform, num)

    def whole(view: SavesView) -> bool:
        over = (view.attempt, view.generation) != (attempt, generation)
        return over or view.answer_to(attempt, generation, request) is not None

    return await here.poll_until((job_topic(num),), wait_s, look, whole)


@router.post("/{num}/stop", openapi_extra=needs(Permission.JOBS_CHANGE, Of.JOB))
def post_stop(here: Here, by: By, num: JobNum, request: StopRequest) -> JobView:
    """Cancel or pause a job; may be repeated."""
    goal = StopGoal(request.goal)
    requests.stop(here.platform, num, goal, request.grace_s, here.clock.now(), by.actor)
    return views.job_view(here.platform, num)


@router.post("/{num}/resume", openapi_extra=needs(Permission.JOBS_CHANGE, Of.JOB))
def post_resume(here: Here, by: By, num: JobNum, request: ResumeRequest | None = None) -> JobView:
    """Put a paused job back into the queue; may be repeated."""
    anew = request is not None and request.begin_anew
    requests.resume(here.platform, num, here.clock.now(), by.actor, begin_anew=anew)
    return views.job_view(here.platform, num)


@router.get("/{num}/why", openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
def get_why(here: Here, num: JobNum) -> WhyView:
    """Why a job waits, runs or stops: its constraints, expected start and what would start it now."""
    return why_view(here.platform, num, here.clock.now())
