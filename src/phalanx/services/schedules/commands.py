"""Create, list, pause, resume and remove schedules, and run one now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from phalanx.core.contract.secrecy import shown_spec
from phalanx.core.tenancy.principals import Caller, Principal
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import Conflict, NotFound, PermissionDenied, Problem, SpecInvalid, StaleRow
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.schedules import PutScheduleRequest, ScheduleRunView, ScheduleView
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.services.batches.submit import check_batch
from phalanx.services.lifecycle.admission import plain_credentials
from phalanx.services.platform import Platform
from phalanx.services.schedules import times
from phalanx.services.schedules.fire import batch_of, store_run
from phalanx.store.database import Tx
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.schedules import rows
from phalanx.store.schedules.rows import SCHEDULES, RunRow, ScheduleRow
from phalanx.store.tenancy import audit

MOST = 1000
"""Schedules that one project may have."""
_NUM_NEXT, _NUM_RUNS = 5, 20


def put_schedule(
    platform: Platform, project: str, name: str, request: PutScheduleRequest, now: int, by: Caller
) -> ScheduleView:
    """Store a schedule; with `replace` in place of the one with its name, whatever that was.

    Its jobs have the rights that its creator has when they are due. Raises SpecInvalid with every problem,
    Conflict for a name that is taken, and PermissionDenied for the schedule of another user.
    """
    submission = _checked(platform, project, request, now, by)

    def work(tx: Tx) -> ScheduleRow:
        before = rows.find(tx, project, name)
        if before is not None and not request.replace:
            raise Conflict(
                f"project {project} has a schedule {name}",
                "choose another name, or replace it: --replace",
            )
        if before is not None:
            _require_owner(by, before)
        elif rows.count(tx, project) >= MOST:
            raise Conflict(f"project {project} has {MOST} schedules", "remove some of them")
        first = None if request.paused else times.next_due(request.cron, request.timezone, now)
        row = ScheduleRow(
            project=project,
            name=name,
            version=1 if before is None else before.version + 1,
            principal=by.principal.id,
            owner=submission.owner,
            cron=request.cron,
            timezone=request.timezone,
            catch_up=request.catch_up,
            catch_up_limit=request.catch_up_limit,
            overlap=request.overlap,
            paused=request.paused,
            request=submission.model_dump(mode="json", exclude={"owner"}),
            code_digest=submission.code,
            next_at=first,
            created_at=now if before is None else before.created_at,
            changed_at=now,
            changed_by=by.actor,
        )
        if before is None:
            rows.insert(tx, row)
            _changed(tx, None, row)
        else:
            _put(tx, before, row)
        return row

    return _view(platform, platform.store.transact(work), None)


def _checked(
    platform: Platform, project: str, request: PutScheduleRequest, now: int, by: Caller
) -> SubmitRequest:
    """The submission of a valid schedule, without values of secrets. Raises SpecInvalid."""
    spec = validate_spec(request.spec)
    if spec.project != project:
        said = f"is not the project of the schedule, {project}"
        raise SpecInvalid([Problem("spec.project", said, spec.project)])
    times.check_times(request.cron, request.timezone, now)
    if request.catch_up == "all" and request.overlap != "allow":
        said = "`all` starts several jobs at once: write `last`, or let them overlap (`allow`)"
        raise SpecInvalid([Problem("catch_up", said, request.catch_up)])
    problems = plain_credentials(request.spec)
    if problems:
        raise SpecInvalid([replace(one, path=f"spec.{one.path}") for one in problems])
    # The values of secret variables would be stored: without them the check refuses such variables.
    plain = shown_spec(resolved(spec))
    submission = SubmitRequest(
        spec=plain, code=request.code, owner=by.owner_of(request.owner), kind="submit"
    )
    check_batch(platform, [submission], by=by)
    return submission


def list_schedules(
    platform: Platform, projects: Sequence[str] | None, project: str | None
) -> list[ScheduleView]:
    """Schedules by project and name. `projects` are those that the caller may see; None: all."""
    wanted = projects if project is None else [project]
    if project is not None and projects is not None and project not in projects:
        wanted = []

    def work(tx: Tx) -> list[ScheduleView]:
        found = rows.every(tx, wanted)
        return [_view(platform, one, rows.runs_of(tx, one.project, one.name, 1)) for one in found]

    return platform.store.view(work)


def show_schedule(platform: Platform, project: str, name: str, now: int) -> ScheduleView:
    """One schedule with its next due times and its newest runs. Raises NotFound."""

    def work(tx: Tx) -> tuple[ScheduleRow, list[RunRow]]:
        return _load(tx, project, name), rows.runs_of(tx, project, name, _NUM_RUNS)

    row, runs = platform.store.view(work)
    coming = [] if row.paused else times.due_after(row.cron, row.timezone, now)
    update = {
        "spec": dict(row.request["spec"]),
        "next": [at_of(at) for at in islice(coming, _NUM_NEXT)],
        "runs": [run_view(platform, one) for one in runs],
    }
    return _view(platform, row, runs).model_copy(update=update)


def pause_schedule(
    platform: Platform, project: str, name: str, now: int, by: Caller
) -> ScheduleView:
    """Let no due time count until `resume_schedule`; may be repeated. Raises NotFound."""
    return _edit(
        platform, project, name, now, by, lambda row: replace(row, paused=True, next_at=None)
    )


def resume_schedule(
    platform: Platform, project: str, name: str, now: int, by: Caller
) -> ScheduleView:
    """Let due times from now on count; may be repeated. Raises NotFound."""

    def work(row: ScheduleRow) -> ScheduleRow:
        if not row.paused:
            return row
        return replace(row, paused=False, next_at=times.next_due(row.cron, row.timezone, now))

    return _edit(platform, project, name, now, by, work)


def _edit(
    platform: Platform,
    project: str,
    name: str,
    now: int,
    by: Caller,
    change: Callable[[ScheduleRow], ScheduleRow],
) -> ScheduleView:
    def work(tx: Tx) -> ScheduleRow:
        before = _load(tx, project, name)
        _require_owner(by, before)
        after = change(before)
        if after == before:
            return before
        after = replace(after, version=before.version + 1, changed_at=now, changed_by=by.actor)
        _put(tx, before, after)
        return after

    return _view(platform, platform.store.transact(work), None)


def remove_schedule(platform: Platform, project: str, name: str, by: Caller) -> None:
    """Remove a schedule with the record of its runs; its jobs go on. Raises NotFound."""

    def work(tx: Tx) -> None:
        before = _load(tx, project, name)
        _require_owner(by, before)
        rows.remove(tx, project, name)
        _changed(tx, before, None)

    platform.store.transact(work)


def run_now(
    platform: Platform,
    project: str,
    name: str,
    now: int,
    by: Caller,
    key: RequestKey | None = None,
) -> ScheduleRunView:
    """Submit the job of a schedule now, also of a paused one and beside its other jobs.

    The job has the rights of the schedule's owner. Raises NotFound, and what a submission raises.
    """
    row = platform.store.view(lambda tx: _load(tx, project, name))
    _require_owner(by, row)
    known = platform.store.view(lambda tx: earlier_answer(tx, key))
    batch = None if known is not None else batch_of(platform, row, now)

    def store(tx: Tx) -> int:
        assert batch is not None
        newest = rows.runs_of(tx, project, name, 1)
        due_at = max(now, newest[0].due_at + 1) if newest else now
        store_run(platform, tx, row, due_at, batch, now, by=by.actor)
        return due_at

    if known is None:
        known = platform.store.transact(lambda tx: once(tx, key, lambda: store(tx)))
    runs = platform.store.view(lambda tx: rows.runs_of(tx, project, name, rows.KEPT_RUNS))
    return next(run_view(platform, one) for one in runs if one.due_at == known)


def _load(tx: Tx, project: str, name: str) -> ScheduleRow:
    found = rows.find(tx, project, name)
    if found is None:
        raise NotFound(
            f"project {project[:200]} has no schedule {name[:200]}",
            "`phalanx schedules ls` lists them",
        )
    return found


def _require_owner(by: Caller, row: ScheduleRow) -> None:
    """Raise PermissionDenied unless the caller owns a schedule or may change jobs of its project."""
    owner = Principal(row.principal).owner
    if not by.may(Permission.JOBS_CHANGE, row.project, owner):
        raise PermissionDenied(
            f"schedule {row.name} belongs to {row.principal}",
            "only its owner and operators of the project may change it",
        )


def _put(tx: Tx, before: ScheduleRow, after: ScheduleRow) -> None:
    if not rows.replace_row(tx, after):
        raise StaleRow(f"schedule {after.name} has changed meanwhile")
    _changed(tx, before, after)


def _changed(tx: Tx, before: ScheduleRow | None, after: ScheduleRow | None) -> None:
    row = before or after
    assert row is not None
    audit.describe(tx, f"schedule {row.project}/{row.name}", _audited(before), _audited(after))
    tx.touched.topics.add(SCHEDULES)


def _audited(row: ScheduleRow | None) -> dict[str, Any] | None:
    names = ("principal", "cron", "timezone", "catch_up", "catch_up_limit", "overlap", "paused")
    if row is None:
        return None
    return {name: getattr(row, name) for name in names} | {
        "code": row.code_digest,
        "spec": dict(row.request["spec"]),
    }


def _view(platform: Platform, row: ScheduleRow, runs: Sequence[RunRow] | None) -> ScheduleView:
    last = runs[0] if runs else None
    return ScheduleView.of(
        row,
        code=row.code_digest,
        next_at=at_or_none(row.next_at),
        created_at=at_of(row.created_at),
        changed_at=at_of(row.changed_at),
        last_run=None if last is None else run_view(platform, last),
        spec=None,
        next=[],
        runs=[],
    )


def run_view(platform: Platform, row: RunRow) -> ScheduleRunView:
    """A run as the API shows it."""
    return ScheduleRunView.of(
        row,
        due_at=at_of(row.due_at),
        handled_at=at_of(row.handled_at),
        label=None if row.job is None else job_label(row.job),
        url=None if row.job is None else platform.job_url(row.job),
        on_request=bool(row.by),
    )
