"""Routes for what stays of jobs: archive, pin and delete jobs, and pin checkpoints."""

from __future__ import annotations

from fastapi import APIRouter

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.jobs import (
    AbandonedDeletionView,
    DeletionView,
    JobView,
    PeriodsRequest,
    PeriodsView,
    PinRequest,
    PinView,
    RetentionView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import JobNum, ObjectName, StrictRoute
from phalanx.services.queries import views
from phalanx.services.retention import deletion, marks
from phalanx.services.retention.abandon import abandon
from phalanx.services.retention.answers import deletion_view, periods_view, retention_view
from phalanx.services.retention.periods import set_periods
from phalanx.store.retention.marks import MarkKind

router = APIRouter(prefix="/api/v1/jobs", tags=["retention"], route_class=StrictRoute)
periods_router = APIRouter(prefix="/api/v1", tags=["retention"], route_class=StrictRoute)
_CHANGE = needs(Permission.JOBS_CHANGE, Of.JOB)


@periods_router.get("/retention", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def get_retention(here: Here) -> RetentionView:
    """The periods of the platform, what the next sweep deletes, and deletions that are not complete."""
    return retention_view(here.platform, here.clock.now())


@periods_router.get(
    "/projects/{name}/retention", openapi_extra=needs(Permission.PROJECT_READ, Of.PROJECT)
)
def get_periods(here: Here, name: ObjectName) -> PeriodsView:
    """The retention periods of a project."""
    return periods_view(here.platform, name)


@periods_router.patch(
    "/projects/{name}/retention", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE)
)
def patch_periods(here: Here, by: By, name: ObjectName, request: PeriodsRequest) -> PeriodsView:
    """Change retention periods of a project: what is left out stays, null takes one away."""
    changes = request.model_dump(exclude_unset=True)
    set_periods(here.platform, name, changes, here.clock.now(), by.actor)
    return periods_view(here.platform, name)


@router.post("/{num}/archive", openapi_extra=_CHANGE)
def post_archive(here: Here, by: By, num: JobNum) -> JobView:
    """Hide a job that has ended from listings; may be repeated."""
    marks.set_mark(here.platform, num, MarkKind.ARCHIVED, True, here.clock.now(), by.actor)
    return views.job_view(here.platform, num)


@router.post("/{num}/unarchive", openapi_extra=_CHANGE)
def post_unarchive(here: Here, by: By, num: JobNum) -> JobView:
    """Show an archived job in listings again; may be repeated."""
    marks.set_mark(here.platform, num, MarkKind.ARCHIVED, False, here.clock.now(), by.actor)
    return views.job_view(here.platform, num)


@router.post("/{num}/pin", openapi_extra=_CHANGE)
def post_pin(here: Here, by: By, num: JobNum) -> JobView:
    """Keep a job and all its data: neither retention nor a request deletes it; may be repeated."""
    marks.set_mark(here.platform, num, MarkKind.PINNED, True, here.clock.now(), by.actor)
    return views.job_view(here.platform, num)


@router.post("/{num}/unpin", openapi_extra=_CHANGE)
def post_unpin(here: Here, by: By, num: JobNum) -> JobView:
    """Let a pinned job be deleted again; may be repeated."""
    marks.set_mark(here.platform, num, MarkKind.PINNED, False, here.clock.now(), by.actor)
    return views.job_view(here.platform, num)


@router.delete("/{num}", openapi_extra=_CHANGE)
def delete_job(here: Here, by: By, num: JobNum, dry_run: bool = False) -> DeletionView:
    """Delete a job that has ended with all its data, its checkpoints and their copies included.

    The answer comes when the job is gone; its files and copies are deleted afterwards. With `dry_run`,
    only say what would be deleted, and what is in the way. The cost of the job stays in reports.
    """
    if dry_run:
        return deletion_view(deletion.preview(here.platform, num))
    return deletion_view(deletion.delete(here.platform, num, here.clock.now(), by.actor))


@router.post("/{num}/deletion/abandon", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def post_abandon(here: Here, by: By, num: JobNum) -> AbandonedDeletionView:
    """Give up the copies of a deleted job in a store that does not come back; may be repeated.

    Everything else is deleted. What is left, and in which stores, stays with the job's number, and in
    the audit log.
    """
    return abandon(here.platform, num, here.clock.now(), by.actor)


@router.post("/{num}/checkpoints/pin", openapi_extra=_CHANGE)
def post_checkpoint_pin(here: Here, by: By, num: JobNum, request: PinRequest) -> PinView:
    """Keep one checkpoint of a job: retention does not delete it; may be repeated."""
    now = here.clock.now()
    path = marks.set_checkpoint_pin(here.platform, num, request.checkpoint, True, now, by.actor)
    return PinView(path=path, pinned=True)


@router.post("/{num}/checkpoints/unpin", openapi_extra=_CHANGE)
def post_checkpoint_unpin(here: Here, by: By, num: JobNum, request: PinRequest) -> PinView:
    """Let a pinned checkpoint be deleted again; may be repeated."""
    now = here.clock.now()
    path = marks.set_checkpoint_pin(here.platform, num, request.checkpoint, False, now, by.actor)
    return PinView(path=path, pinned=False)
