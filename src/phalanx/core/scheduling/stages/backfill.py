"""Backfill: jobs that are expected to end in time use kept slots until their owner can start."""

from __future__ import annotations

from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.model.urgency import bounded_s, expected_s
from phalanx.core.scheduling.stages.scheduling_pass import KeptSlots, Pass


def backfill(state: Pass) -> None:
    """Let short jobs of blocked classes use kept slots until the owner of the reservation can.

    Slots that victims free are open within the time of a save: run times that short cannot be
    estimated.
    """
    blocked = state.decisions.blocked
    for kept in [one for one in state.kept if one.allocations] if blocked else ():
        ready_at = kept.reservation.ready_at
        if ready_at is not None and not kept.reservation.victims and ready_at > state.now:
            _fill(state, kept, blocked, (ready_at - state.now) / US)


def _fill(
    state: Pass, kept: KeptSlots, blocked: list[tuple[EquivalenceClass, int]], window_s: float
) -> None:
    state.release(kept)
    history, started, owner = state.cluster.history, state.decisions.started, kept.reservation.job
    for eq_class, position in blocked:
        for _, num in eq_class.jobs[position:]:
            job = state.cluster.waiting[num]
            if num in started or num == owner:
                continue
            lasts_s = bounded_s(job) if kept.firm else expected_s(job, eq_class.kind, history)
            if lasts_s is None or lasts_s > window_s or state.ledger.over_limit(job):
                break
            if not state.try_start(eq_class, num):
                break
    state.kept.remove(kept)
    widths = state.cluster.waiting[owner].widths(len(kept.reservation.nodes))
    state.hold_back(kept.reservation, *widths).firm = kept.firm
