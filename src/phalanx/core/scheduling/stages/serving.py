"""The stages that serve one queued job: its quota, a free place, and the places of preempted jobs."""

from __future__ import annotations

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.model.outcome import Preemption
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.search.victims import VictimPlan, find_victims
from phalanx.core.scheduling.stages import elastic, reasons
from phalanx.core.scheduling.stages.queue import QueueHead, Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass


def quota(state: Pass, head: QueueHead) -> Verdict:
    """Block a class if its next job would exceed a limit of its project or of one above."""
    job = state.cluster.waiting[head.num]
    limit = state.ledger.over_limit(job)
    if limit is None:
        return Verdict.OPEN
    state.decisions.limited.append((head.eq_class, reasons.over_limit(limit, job)))
    return Verdict.BLOCKED


def place(state: Pass, head: QueueHead) -> Verdict:
    """Start the job in free slots: the narrowest domain that holds the whole gang."""
    return Verdict.SERVED if state.try_start(head.eq_class, head.num) else Verdict.OPEN


def shrink(state: Pass, head: QueueHead) -> Verdict:
    """Shrink elastic jobs; also decide whether this pass may search any further."""
    config, searched = state.config, state.num_searches
    head.may_search = (
        searched < config.preemption_budget and state.decisions.num_steps < config.step_budget
    )
    if not head.may_search:
        return Verdict.OPEN
    state.num_searches += 1
    if not elastic.shrink_for(state, head.eq_class, head.num):
        return Verdict.OPEN
    return _promised(state, head)


def preempt(state: Pass, head: QueueHead) -> Verdict:
    """Preempt the cheapest set of jobs that lets the whole gang start."""
    if not head.may_search:
        return Verdict.OPEN
    found = find_victims(state.victims, head.eq_class, head.since, head.num)
    if found is None:
        return Verdict.OPEN
    _preempt(state, state.cluster.waiting[head.num], found)
    return _promised(state, head)


def _promised(state: Pass, head: QueueHead) -> Verdict:
    state.decisions.reasons[head.num] = reasons.coming(state, head.num)
    return Verdict.SERVED


def _preempt(state: Pass, job: QueuedJob, found: VictimPlan) -> None:
    """Decide the preemptions, and keep the nodes for the gang until its reservation expires."""
    held, decisions = state.cluster.held, state.decisions
    save_s = max((held[victim].save_s or 0.0 for victim in found.victims), default=0.0)
    reservation = Reservation(
        job.num,
        tuple(state.index.nodes[node].id for node in found.nodes),
        state.now + int(save_s * US),
        state.now + int((save_s + state.config.reservation_ttl_s) * US),
        tuple(found.victims),
    )
    state.reserve(reservation, job)
    for victim, cost in zip(found.victims, found.prices, strict=True):
        state.victims.leave(victim)
        text = (
            f"makes room for j-{job.num} ({job.num_slots} slots, priority {job.priority}); "
            f"costs about {cost / 3600:.2f} slot-hours"
        )
        reason = Reason(ReasonCode.PREEMPTED, text)
        decisions.preemptions.append(Preemption(victim, job.num, cost, reason))
    state.ledger.use(job.project, job.num_slots, 1)
