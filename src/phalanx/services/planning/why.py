"""Explain why a job waits or was preempted, from the planner's decisions and the job's events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from phalanx.core.jobs.events import AttemptPlaced, StopRequested
from phalanx.core.jobs.model import Job, JobState, StopGoal
from phalanx.core.reasons import OUTSIDE_CAUSES, code_of
from phalanx.core.scheduling import Why
from phalanx.core.scheduling.explain.why import Victim, why, why_victim
from phalanx.kit.text import job_label, study_label, trial_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.jobs import ReasonView, RestartView
from phalanx.schemas.api.why import (
    ConstraintView,
    CounterfactualView,
    EvictionView,
    VictimView,
    WaitView,
    WhyView,
)
from phalanx.services.planning.scheduling import view_of
from phalanx.services.platform import Platform
from phalanx.services.queries.lineage import lineage_view
from phalanx.services.queries.views import awaited, communication_of
from phalanx.services.resources.scaling import growth_in_words
from phalanx.store import events, jobs, supervisors
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.jobs import StoredJob
from phalanx.store.studies import rows

# By the phase of a supervisor's heartbeat.
_BEFORE_RANKS = {
    "packages": "the Python packages are being installed",
    "setup": "the set-up command runs",
}


def why_view(platform: Platform, num: int, now: int) -> WhyView:
    """Explain the state of a job. Raises NotFound, ExecutorUnavailable."""
    stored = platform.store.view(lambda tx: jobs.load(tx, num))
    view = WhyView(
        num=num,
        label=job_label(num),
        url=platform.job_url(num),
        state=stored.job.state.value,
        reason=ReasonView(code=stored.job.reason.code.value, message=stored.job.reason.message),
        evictions=platform.store.view(lambda tx: evictions_of(tx, num)),
        waits=platform.store.view(lambda tx: waits_of(tx, num)),
        trial=platform.store.view(lambda tx: _of_study(tx, stored)),
        communication=communication_of(platform, stored.job),
    )
    if stored.job.state is JobState.QUEUED:
        return _waiting(platform, view, stored, now)
    if stored.job.holds_slots:
        view = _starting(platform, view, stored.job)
        victim = why_victim(view_of(platform, now).snapshot, num, now)
        return view.model_copy(
            update={"preempted_for": None if victim is None else _victim(victim)}
        )
    return view


def _of_study(tx: Tx, stored: StoredJob) -> str:
    """What the study of a trial's job says about it; empty for a job that is no trial."""
    num, number = stored.facts.study, stored.facts.trial
    if num is None or number is None:
        return ""
    trial, progress = rows.trial(tx, num, number), rows.load(tx, num).progress
    said = f"{trial_label(num, number)} is {trial.status} ({trial.reason})"
    if trial.job is not None and trial.job != stored.job.num:
        said += f", now in {job_label(trial.job)}"
    why = f"{progress.reason_code}: {progress.reason_message}".removesuffix(": ")
    return f"{said}; {study_label(num)} is {progress.state} ({why})"


def _starting(platform: Platform, view: WhyView, job: Job) -> WhyView:
    """Names the nodes that do something for the job before its first rank."""
    attempt = job.attempt
    if attempt is None:
        return view
    rows = platform.store.view(lambda tx: supervisors.of_attempt(tx, job.num, attempt.num))
    busy: dict[str, list[str]] = {}
    for row in rows:
        if row.phase in _BEFORE_RANKS:
            node = attempt.placement.shares[row.node_rank].node
            busy.setdefault(row.phase, []).append(node)
    said = [f"{_BEFORE_RANKS[phase]} on {', '.join(nodes)}" for phase, nodes in busy.items()]
    waits = awaited(job, rows)
    if waits is not None:
        reason = ReasonView(code=waits.code.value, message=waits.message)
    elif said and job.state is JobState.STARTING:
        reason = ReasonView(code=view.reason.code, message="; ".join(said))
    else:
        return view
    return view.model_copy(update={"reason": reason})


def _waiting(platform: Platform, view: WhyView, stored: StoredJob, now: int) -> WhyView:
    view_now, num = view_of(platform, now), stored.job.num
    deferred = view_now.deferred.get(num)
    if deferred is not None:
        reason = ReasonView(code=deferred.code.value, message=deferred.message)
        return view.model_copy(update={"reason": reason})
    found = why(view_now.snapshot, num, now)
    view = view.model_copy(update={"growth": growth_in_words(platform, num)})
    if found is None:
        return view
    answer = _answer(found)
    if _is_outage(stored.job, now):
        # The slots that it also waits for are not what keeps it from starting.
        del answer["reason"]
    return view.model_copy(update=answer)


def _is_outage(job: Job, now: int) -> bool:
    """Whether a job waits because something outside of it prevented its last start."""
    waits = job.not_before is not None and job.not_before > now
    return waits and job.reason.code in {code_of(cause) for cause in OUTSIDE_CAUSES}


def _answer(found: Why) -> dict[str, Any]:
    return {
        "reason": ReasonView(code=found.reason.code.value, message=found.reason.message),
        "position": found.position,
        "num_waiting": found.num_waiting,
        "eta_p50_at": at_or_none(found.eta_p50_at),
        "eta_p90_at": at_or_none(found.eta_p90_at),
        "constraints": [
            ConstraintView(
                binding=one.binding.value,
                text=one.text,
                need=one.need,
                have=one.have,
                unit=one.unit,
                names=list(one.names),
            )
            for one in found.constraints
        ],
        "changes": [
            CounterfactualView(
                kind=one.kind.value,
                text=one.text,
                by_preemption=one.by_preemption,
                victims=list(one.victims),
            )
            for one in found.changes
        ],
        "victims": [_victim(one) for one in found.victims],
    }


def _victim(one: Victim) -> VictimView:
    return VictimView(**asdict(one))


def evictions_of(tx: Tx, num: int) -> list[EvictionView]:
    """Read every preemption and move of a job, with its cost so far."""
    asked = events.of_job(tx, num, limit=100_000, kinds=(events.kind_of(StopRequested),))
    leaving = [one for one in asked if one.data.get("goal") == StopGoal.REQUEUE.value]
    if not leaving:
        return []
    restarts = lineage_view(tx, jobs.load(tx, num).job).restarts
    by_attempt = {one.attempt: one for one in restarts}
    return [_eviction(one, by_attempt.get(one.attempt or 0)) for one in leaving]


def waits_of(tx: Tx, num: int) -> list[WaitView]:
    """Read what the job waited for before each of its placements."""
    placed = events.of_job(tx, num, limit=100_000, kinds=(events.kind_of(AttemptPlaced),))
    return [
        WaitView(
            attempt=one.attempt or int(one.data.get("attempt", 0)),
            placed_at=at_of(one.at),
            waited_s=float(one.data.get("waited_s", 0.0)),
            text=str(one.data.get("waited_for", "")),
        )
        for one in placed
        if "waited_s" in one.data
    ]


def _eviction(one: StoredEvent, cost: RestartView | None) -> EvictionView:
    return EvictionView(
        at=at_of(one.at),
        code=one.reason_code,
        text=one.reason_message,
        beneficiary=one.data.get("beneficiary"),
        price_slot_s=one.data.get("price_slot_s"),
        next_step_at=None if cost is None else cost.next_step_at,
        lost_s=None if cost is None else cost.lost_s,
    )
