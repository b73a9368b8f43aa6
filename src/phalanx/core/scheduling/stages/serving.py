"""The stages that serve one queued job: its quota, a free place, and the places of preempted jobs."""

from __future__ import annotations

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.index.cluster_index import without_types
from phalanx.core.scheduling.model.outcome import Preemption
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.search.ledger import QuotaClaim
from phalanx.core.scheduling.search.quota import find_quota_victims
from phalanx.core.scheduling.search.victims import VictimPlan, find_victims
from phalanx.core.scheduling.stages import elastic, reasons, reservations
from phalanx.core.scheduling.stages.queue import QueueHead, Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass


def quota(state: Pass, head: QueueHead) -> Verdict:
    """Hold a job at a limit of its project or of one above, unless jobs of that project make room for it.

    Elastic jobs shrink first, then the cheapest jobs leave. Else room below the limit is kept for the job.
    """
    job = state.cluster.waiting[head.num]
    limit = state.ledger.over_limit(job)
    if limit is None:
        head.eq_class = state.narrowed(head.eq_class, job, job.least_slots)
        return Verdict.OPEN
    if limit.kept_for is None:
        claim = state.ledger.claim(job)
        if claim is not None and _make_room(state, head, claim):
            return _promised(state, head)
        if claim is not None or not state.ledger.promised:
            reservations.keep_below_limits(state, head)
    state.decisions.limited.append((head.eq_class, reasons.over_limit(limit, job)))
    return Verdict.BLOCKED


def _make_room(state: Pass, head: QueueHead, claim: QuotaClaim) -> bool:
    """Let jobs below the limit shrink or leave for a job; False if that would not let it start."""
    if not _may_search(state):
        return False
    state.num_searches += 1
    eq_class = without_types(state.cluster, head.eq_class, claim.without)
    if elastic.shrink_for(state, eq_class, head.num, claim):
        return True
    found = find_quota_victims(state.victims, eq_class, head.since, head.num, claim, head.overdue)
    if found is not None:
        _preempt(state, state.cluster.waiting[head.num], found)
    return found is not None


def _may_search(state: Pass) -> bool:
    config, searched = state.config, state.num_searches
    return searched < config.preemption_budget and state.decisions.num_steps < config.step_budget


def place(state: Pass, head: QueueHead) -> Verdict:
    """Start the job in free slots: the narrowest domain that holds the whole gang."""
    return Verdict.SERVED if state.try_start(head.eq_class, head.num) else Verdict.OPEN


def shrink(state: Pass, head: QueueHead) -> Verdict:
    """Shrink elastic jobs; also decide whether this pass may search any further."""
    head.may_search = _may_search(state)
    if not head.may_search:
        return Verdict.OPEN
    state.num_searches += 1
    if not elastic.shrink_for(state, head.eq_class, head.num):
        return Verdict.OPEN
    return _promised(state, head)


def preempt(state: Pass, head: QueueHead) -> Verdict:
    """Preempt the cheapest set of jobs that lets the whole gang start."""
    job = state.cluster.waiting[head.num]
    # An elastic job that may not have its full size does not evict others for it.
    if not head.may_search or state.ledger.over_limit(job, job.num_slots) is not None:
        return Verdict.OPEN
    eq_class = state.narrowed(head.eq_class, job, job.num_slots)
    found = find_victims(state.victims, eq_class, head.since, head.num, head.overdue)
    if found is None:
        return Verdict.OPEN
    _preempt(state, job, found)
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
    text = f"makes room for j-{job.num} ({job.num_slots} slots, priority {job.priority})"
    for victim, cost in zip(found.victims, found.prices, strict=True):
        state.victims.leave(victim)
        price = f"{text}; costs about {cost / 3600:.2f} slot-hours"
        reason = Reason(ReasonCode.PREEMPTED, price)
        decisions.preemptions.append(Preemption(victim, job.num, cost, reason))
    state.ledger.promise(job, reservation.nodes)
