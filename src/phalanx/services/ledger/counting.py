"""Count what happens to jobs, in the transactions that store it.

The totals belong to the database: every control plane on it exports the same ones, and the end of one
neither resets nor doubles them. `core.metrics.lifecycle` names the families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.core.contract.records import SAVE_FAILED
from phalanx.core.gang.failures import PREFLIGHT_FAILED
from phalanx.core.jobs.faults import fault_of
from phalanx.core.jobs.model import TERMINAL, Job, JobState, StopGoal
from phalanx.core.metrics.catalogue import family
from phalanx.core.probes import PROBE_PROJECT
from phalanx.core.reasons import Cause, ReasonCode
from phalanx.core.slo.objectives import class_name
from phalanx.core.tracing.identity import JobTrace
from phalanx.store.database import Tx
from phalanx.store.engines.totals import AddedTotals
from phalanx.store.events import NewEvent
from phalanx.store.jobs import StoredJob

_US = 1e-6
_ENDED = frozenset(one.value for one in TERMINAL)


_STALLS = frozenset({"ranks_stalled", "stacks_captured", "stacks_overdue"})
"""Events that may end a generation because it is stalled."""


def count_submitted(tx: Tx, num_jobs: int) -> None:
    """Count new jobs."""
    tx.touched.totals.add("phalanx_jobs_submitted", by=num_jobs)


def count_changes(
    tx: Tx, stored: StoredJob, job: Job, entries: Sequence[NewEvent], now: int
) -> None:
    """Count what the events of one job changed; `job` is as it is after all of them."""
    before, totals = stored.job, tx.touched.totals
    contract = stored.facts.contract
    uid = "" if contract is None else str(contract.get("uid") or "")
    totals.about("" if contract is None else JobTrace(job.num, uid).root.trace, now)
    state, restarts = before.state.value, before.restarts
    for one in entries:
        after = str(one.reason["state"])
        if one.kind in _STALLS and state != after:
            # Another node may still have a good reason for the pause when one node suspects a stall.
            totals.add("phalanx_stalls")
            totals.add("phalanx_failures", Cause.STALLED.value)
        _count_event(totals, one, made_room=state != after == JobState.STOPPING.value)
        if one.reason["restarts"] > restarts:
            totals.add("phalanx_restarts", str(one.reason["code"]))
        restarts = one.reason["restarts"]
        if after != state:
            probes = stored.facts.project == PROBE_PROJECT
            of_class = () if probes else (class_name(stored.facts.spec),)
            _count_state(totals, state, after, before, job, now, of_class)
            if after in _ENDED and not probes:
                fault = fault_of(job).value
                totals.add("phalanx_jobs_ended", fault)
                totals.add("phalanx_class_jobs_ended", *of_class, fault)
        state = after
    totals.about("", now)


def _count_event(totals: AddedTotals, one: NewEvent, *, made_room: bool) -> None:
    count = _EVENTS.get(one.kind)
    if count is not None:
        count(totals, one.data)
    if one.kind == "stop_requested" and made_room and one.data["goal"] == StopGoal.REQUEUE.value:
        totals.add("phalanx_restarts", str(one.reason["code"]))
        totals.add("phalanx_preemptions", str(one.reason["code"]))


def _count_state(
    totals: AddedTotals,
    state: str,
    after: str,
    before: Job,
    job: Job,
    now: int,
    of_class: tuple[str, ...],
) -> None:
    if after == JobState.STARTING.value and state == JobState.QUEUED.value:
        since = before.submitted_at if before.queued_at is None else before.queued_at
        _observe(totals, "phalanx_queue_wait_seconds", now - since)
        for name in of_class:
            _observe(totals, "phalanx_class_queue_wait_seconds", now - since, name)
    elif after == JobState.RUNNING.value:
        placed = None if job.attempt is None else job.attempt.placed_at
        failure = before.last_failure
        if state == JobState.RECOVERING.value and failure is not None:
            _observe(totals, "phalanx_recovery_seconds", now - failure.at)
            for name in of_class:
                _observe(totals, "phalanx_class_recovery_seconds", now - failure.at, name)
        elif state == JobState.STARTING.value and placed is not None:
            _observe(totals, "phalanx_start_seconds", now - placed)
    elif after in _ENDED:
        totals.add("phalanx_jobs_finished", after)
        _observe(totals, "phalanx_job_seconds", now - job.submitted_at, after)
        if job.reason.code is ReasonCode.FINAL_CHECKPOINT_NOT_SAVED:
            totals.add("phalanx_save_failures", "final")


def _observe(totals: AddedTotals, name: str, elapsed_us: int, *labels: str) -> None:
    totals.observe(name, family(name).bounds, max(0, elapsed_us) * _US, *labels)


# -- single events -------------------------------------------------------------------------------


def _failed(totals: AddedTotals, data: Mapping[str, Any]) -> None:
    failure = data["failure"]
    if failure.get("collateral"):
        return
    cause = str(failure["cause"])
    totals.add("phalanx_failures", cause)
    if cause == Cause.OOM.value:
        totals.add("phalanx_oom_kills")
    elif failure.get("exception") == PREFLIGHT_FAILED:
        totals.add("phalanx_preflight_failures")
    elif cause == Cause.START_FAILED.value:
        totals.add("phalanx_start_failures", cause)
    elif cause == Cause.CHECKPOINT_MISSING.value:
        totals.add("phalanx_resumes", "failed")


def _restored(totals: AddedTotals, data: Mapping[str, Any]) -> None:
    if data.get("path"):
        totals.add("phalanx_resumes", "exact" if data.get("exact", True) else "not_exact")
        if data.get("took_s") is not None:
            _observe(totals, "phalanx_resume_seconds", round(data["took_s"] / _US))


def _save_begun(totals: AddedTotals, data: Mapping[str, Any]) -> None:
    if data.get("failed"):
        totals.add("phalanx_save_failures", "requested")


def _warned(totals: AddedTotals, data: Mapping[str, Any]) -> None:
    totals.add("phalanx_warnings")
    if data.get("code") == SAVE_FAILED:
        totals.add("phalanx_save_failures", "regular")


def _node_lost(totals: AddedTotals, data: Mapping[str, Any]) -> None:
    totals.add("phalanx_nodes_lost")
    totals.add("phalanx_failures", str(data.get("cause", Cause.NODE_LOST.value)))


def _not_launched(totals: AddedTotals, data: Mapping[str, Any]) -> None:
    cause = str(data.get("cause", Cause.START_FAILED.value))
    totals.add("phalanx_start_failures", cause)
    totals.add("phalanx_failures", cause)


_EVENTS: Mapping[str, Callable[[AddedTotals, Mapping[str, Any]], None]] = {
    "attempt_placed": lambda totals, data: totals.add("phalanx_attempts"),
    "rank_failed": _failed,
    "launch_failed": _not_launched,
    "node_lost": _node_lost,
    "stop_overdue": lambda totals, data: totals.add("phalanx_stops_overdue"),
    "checkpoint_quarantined": lambda totals, data: totals.add("phalanx_checkpoints", "quarantined"),
    "restored": _restored,
    "save_begun": _save_begun,
    "warned": _warned,
    "guarded": lambda totals, data: totals.add("phalanx_guard_actions", str(data["action"])[:32]),
}
