"""Routes for jobs: submit, list, show, stop, pause, resume."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.errors import UserError
from phalanx.schemas.api.jobs import (
    CheckpointView,
    EventPage,
    JobPage,
    JobView,
    StopRequest,
    SubmitRequest,
    SubmitResponse,
)
from phalanx.schemas.api.telemetry import ProfileRequest, ProfilesView, RequestTicket, StacksView
from phalanx.schemas.api.why import WhyView
from phalanx.server.context import Here
from phalanx.services.lifecycle import requests
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.lifecycle.submit import check, submit
from phalanx.services.planning.why import why_view
from phalanx.services.queries import profiles, stacks, views
from phalanx.store.jobs import JobFilter

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])


@router.post("", status_code=201)
def post_job(here: Here, request: SubmitRequest, dry_run: bool = False) -> SubmitResponse:
    """Submit a job. With `dry_run`, only return the resolved spec."""
    if dry_run:
        return SubmitResponse(job=None, spec=check(here.platform, request).resolved)
    num, accepted = submit(here.platform, request, here.clock.now())
    return SubmitResponse(job=views.job_view(here.platform, num), spec=accepted.resolved)


@router.get("")
def get_jobs(  # noqa: PLR0913
    here: Here,
    state: Annotated[list[str] | None, Query()] = None,
    project: str | None = None,
    owner: str | None = None,
    name: str | None = None,
    label: Annotated[list[str] | None, Query(description="key=value")] = None,
    before: int | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> JobPage:
    """Jobs, newest first. `before` is the `next` of the previous page."""
    wanted = JobFilter(
        states=tuple(_state(one) for one in state or ()),
        project=project,
        owner=owner,
        name=name,
        labels=tuple(_label(one) for one in label or ()),
    )
    return views.list_jobs(here.platform, wanted, before=before, limit=limit)


def _state(text: str) -> JobState:
    try:
        return JobState(text)
    except ValueError:
        known = ", ".join(JobState)
        raise UserError(f"there is no state {text!r}", f"known: {known}") from None


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UserError(f"{text!r} is not a label", "write key=value")
    return key, value


@router.get("/{num}")
def get_job(here: Here, num: int) -> JobView:
    """One job with ranks, progress and lineage."""
    return views.job_view(here.platform, num)


@router.get("/{num}/events")
async def get_events(
    here: Here, num: int, after: int = 0, wait_s: Annotated[float, Query(ge=0)] = 0.0
) -> EventPage:
    """The job's events after number `after`; waits up to `wait_s` seconds for new ones."""

    return await here.poll_until(
        (job_topic(num),),
        wait_s,
        lambda: views.event_page(here.platform, num, after=after),
        lambda page: bool(page.events) or page.done,
    )


@router.get("/{num}/checkpoints")
def get_checkpoints(here: Here, num: int) -> list[CheckpointView]:
    """The job's checkpoints, oldest first."""
    return views.list_checkpoints(here.platform, num)


@router.post("/{num}/stacks")
def post_stacks(here: Here, num: int) -> RequestTicket:
    """Ask every rank for its stacks; the answers appear at the same path."""
    return stacks.ask_stacks(here.platform, num, here.clock.now(), "user")


@router.get("/{num}/stacks")
async def get_stacks(
    here: Here,
    num: int,
    attempt: int = 0,
    generation: int = 0,
    request: int = 0,
    wait_s: Annotated[float, Query(ge=0)] = 0.0,
) -> StacksView:
    """Stored stacks; waits up to `wait_s` seconds until every rank has answered a request."""

    look = partial(stacks.read_stacks, here.platform, num)
    asked = (attempt, generation, request)

    def whole(view: StacksView) -> bool:
        found = [one for one in view.captures if one.answers == asked]
        over = (view.attempt, view.generation) != (attempt, generation)
        return over or any(len(one.ranks) >= view.world_size for one in found)

    return await here.poll_until((job_topic(num),), wait_s, look, whole)


@router.post("/{num}/profiles")
def post_profile(here: Here, num: int, request: ProfileRequest) -> RequestTicket:
    """Ask the ranks to profile their next steps; the answer appears at the same path."""
    return profiles.ask_profile(here.platform, num, request, here.clock.now(), "user")


@router.get("/{num}/profiles")
async def get_profiles(
    here: Here,
    num: int,
    attempt: int = 0,
    generation: int = 0,
    request: int = 0,
    wait_s: Annotated[float, Query(ge=0)] = 0.0,
) -> ProfilesView:
    """Stored profiles; waits up to `wait_s` seconds for the answer to a request."""

    look = partial(profiles.read_profiles, here.platform, num)
    asked = (attempt, generation, request)

    def whole(view: ProfilesView) -> bool:
        over = (view.attempt, view.generation) != (attempt, generation)
        return over or any(one.answers == asked for one in view.profiles)

    return await here.poll_until((job_topic(num),), wait_s, look, whole)


@router.post("/{num}/stop")
def post_stop(here: Here, num: int, request: StopRequest) -> JobView:
    """Cancel or pause a job; may be repeated."""
    goal = StopGoal(request.goal)
    requests.stop(here.platform, num, goal, request.grace_s, here.clock.now(), "user")
    return views.job_view(here.platform, num)


@router.post("/{num}/resume")
def post_resume(here: Here, num: int) -> JobView:
    """Put a paused job back into the queue; may be repeated."""
    requests.resume(here.platform, num, here.clock.now(), "user")
    return views.job_view(here.platform, num)


@router.get("/{num}/why")
def get_why(here: Here, num: int) -> WhyView:
    """Why a job waits, runs or stops: its constraints, expected start and what would start it now."""
    return why_view(here.platform, num, here.clock.now())
