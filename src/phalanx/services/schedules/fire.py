"""The step that starts the jobs of due schedules.

One transaction holds the run of a due time, its jobs and the next due time of the schedule. The key of the
run is the due time, and the transaction is one of the leader's: a leader that is killed or replaced leaves
the due time as it was, or handled, and no second one handles it again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from phalanx.core.contract.access import Scope
from phalanx.core.jobs.events import StopRequested
from phalanx.core.jobs.model import StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.schedules.policy import CatchUp, DueOutcome, Overlap, decide_due, num_wanted
from phalanx.core.tenancy.principals import Caller
from phalanx.errors import PermissionDenied, PlatformError, StoreError
from phalanx.kit.text import job_label, shorten
from phalanx.kit.units import to_rfc3339
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.services.batches.submit import BatchEntry, check_batch, store_batch
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.services.resources.credentials import principal_of
from phalanx.services.schedules import times
from phalanx.store.database import Tx
from phalanx.store.schedules import rows
from phalanx.store.schedules.rows import SCHEDULES, RunRow, ScheduleRow

_LOG = logging.getLogger(__name__)
_BATCH = 50
_ACTOR = "schedules"
_MAX_MESSAGE = 1000

Batch = tuple[Caller, Sequence[BatchEntry]]


def schedules_step(platform: Platform, now: int) -> int | None:
    """Handle schedules that are due; returns the earliest due time of all."""
    for row in platform.store.view(lambda tx: rows.due(tx, now, _BATCH)):
        _handle(platform, row, now)
    return platform.store.view(rows.next_at)


def _handle(platform: Platform, row: ScheduleRow, now: int) -> None:
    """Start the jobs of a due schedule. Raises what may be over soon, such as ExecutorUnavailable."""
    catch_up, limit = CatchUp(row.catch_up), row.catch_up_limit
    first = now if row.next_at is None else row.next_at
    due = times.newest_due(row.cron, row.timezone, first, now, num_wanted(catch_up, limit))
    plan = decide_due(due, catch_up, limit, now)

    def store(batches: Sequence[Batch], problem: str = "") -> None:
        platform.store.transact(lambda tx: work(tx, batches, problem))

    def work(tx: Tx, batches: Sequence[Batch], problem: str) -> None:
        after = times.next_due(row.cron, row.timezone, now)
        if not rows.replace_row(tx, replace(row, version=row.version + 1, next_at=after)):
            return  # it was changed or removed meanwhile
        # After a clock was set back a time may come again.
        known = rows.handled(tx, row.project, row.name, [plan.missed or 0, *plan.start])
        if plan.missed is not None and plan.missed not in known:
            said = "this time, and those before it, passed while nothing could start a job"
            rows.add_run(tx, _run(row, plan.missed, now, DueOutcome.MISSED, said))
        for at, batch in zip_longest(plan.start, batches):
            if at in known:
                continue
            if batch is None:
                rows.add_run(tx, _run(row, at, now, DueOutcome.REFUSED, problem))
            elif not _skipped(tx, row, at, now):
                store_run(platform, tx, row, at, batch, now)
        tx.touched.topics.add(SCHEDULES)

    try:
        # A batch for each time: jobs of different times share no identity.
        store([batch_of(platform, row, at) for at in plan.start])
    except PlatformError as error:
        if error.retryable or isinstance(error, StoreError):
            raise
        _LOG.warning("schedule %s/%s: %s", row.project, row.name, error.message)
        store([], shorten(str(error), _MAX_MESSAGE))


def batch_of(platform: Platform, row: ScheduleRow, due_at: int) -> Batch:
    """The checked jobs of a due time, with the present rights of the schedule's owner.

    Raises as `check_batch`, and PermissionDenied for an owner that may not submit any more.
    """
    principal = principal_of(platform, row.principal)
    if principal is None:
        raise PermissionDenied(
            f"{row.principal}, the owner of schedule {row.name}, has no account any more",
            "replace the schedule: its jobs then have your rights",
        )
    by = Caller("schedule", (Scope.SUBMIT,), principal)
    request = SubmitRequest(**row.request, owner=row.owner)
    variables = {"PHALANX_SCHEDULE": row.name, "PHALANX_SCHEDULED_AT": to_rfc3339(due_at)}
    entries = check_batch(platform, [request], by=by)
    return by, [one.with_variables(variables) for one in entries]


def store_run(
    platform: Platform,
    tx: Tx,
    row: ScheduleRow,
    due_at: int,
    batch: Batch,
    now: int,
    by: str = "",
) -> None:
    """Store a run with its jobs. `by` is the principal that asked for it, if one did."""
    caller, entries = batch
    nums = store_batch(platform, tx, entries, now, caller)
    found = _run(row, due_at, now, DueOutcome.SUBMITTED)
    rows.add_run(tx, replace(found, job=nums[0], num_jobs=len(nums), by=by))


def _skipped(tx: Tx, row: ScheduleRow, due_at: int, now: int) -> bool:
    """Whether an earlier job of a schedule keeps a due time from starting another one."""
    live = [] if row.overlap == Overlap.ALLOW else rows.live_jobs(tx, row.project, row.name)
    if live and row.overlap == Overlap.FORBID:
        said = f"{job_label(live[0])} is not over"
        rows.add_run(tx, _run(row, due_at, now, DueOutcome.OVERLAPPED, said))
        return True
    reason = Reason(ReasonCode.CANCEL_REQUESTED, f"replaced by schedule {row.name}")
    for num in live:
        commit_events(tx, num, [StopRequested(StopGoal.CANCEL, reason)], now, _ACTOR)
    return False


def _run(row: ScheduleRow, due_at: int, now: int, outcome: DueOutcome, message: str = "") -> RunRow:
    return RunRow(row.project, row.name, due_at, now, outcome.value, None, 0, "", message)
