"""Relief: a hero makes room for small jobs once those have waited for as long as that puts it off.

Among peers a hero is nobody's victim, or it would stop for every short job in turn. A few of them can hold
a whole pool, though, while a thousand small jobs wait. So who waits has to pay: when the small jobs of a
priority have together waited as many slot-seconds as a hero will lose by stopping (its pause, and the usual
wait of its size until it starts again), one hero leaves. However long the heroes would have run, the waits
come to at most about twice the least possible that way.
"""

from __future__ import annotations

from phalanx.core.scheduling.model.durations import size_class
from phalanx.core.scheduling.model.eviction_cost import price
from phalanx.core.scheduling.model.planning_input import US, RunningJob
from phalanx.core.scheduling.stages.scheduling_pass import Pass, PendingGang


def large_job_limit(state: Pass, node: int) -> float:
    """The slots beyond which a job on nodes like this one counts as a hero."""
    group = state.index.group_of[node]
    return max(
        state.config.large_job_slots, state.config.large_job_fraction * group.num_nodes * group.size
    )


def is_large(state: Pass, held: RunningJob) -> bool:
    """Whether a running job is so large that its peers have to let it run."""
    if held.num_slots <= state.config.large_job_slots:
        return False
    nodes = state.cluster.nodes_of[held.job]
    return bool(nodes) and held.num_slots > large_job_limit(state, nodes[0])


def candidates(
    state: Pass, gang: PendingGang, large_jobs: list[tuple[float, int]]
) -> dict[int, float]:
    """Heroes that this claim outweighs and whose loss has been paid for, with what stopping them costs.

    None while another leaves: what that frees is often enough for all who wait.
    """
    config, held_by = state.config, state.cluster.held
    found: dict[int, float] = {}
    if not large_jobs or gang.job.num_slots > state.largest_small():
        return found
    for score, num in large_jobs:
        held = held_by[num]
        state.steps += 1
        if score * config.hysteresis >= gang.urgency:
            break
        if state.project_shares and held.project != gang.job.project:
            continue
        if _put_off_slot_s(state, held) <= _waited_slot_s(state, gang):
            found[num] = price(state, held)
    return {} if found and _is_one_leaving(state) else found


def _put_off_slot_s(state: Pass, held: RunningJob) -> float:
    """Slot-seconds by which stopping this hero puts it off."""
    again_s = state.cluster.history.requeue_s.get(size_class(held.num_slots), 0.0)
    pause_s = held.restart_s + (held.save_s or 0.0) + state.config.min_run_s
    return held.num_slots * (pause_s + again_s)


def _waited_slot_s(state: Pass, gang: PendingGang) -> float:
    """Slot-seconds that the queued small jobs of this priority have waited since they queued last."""
    key = ("" if not state.project_shares else gang.job.project, gang.job.priority)
    known = state.waited.get(key)
    if known is None:
        project, priority = key
        limit, waiting, waited = state.largest_small(), state.cluster.waiting, 0
        for (whose, urgent, slots), queued in state.cluster.queued.items():
            if urgent == priority and slots <= limit and (not project or whose == project):
                waited += slots * (queued.num * state.now - queued.since)
        for num in state.started:
            job = waiting[num]
            mine = job.priority == priority and (not project or job.project == project)
            if mine and job.num_slots <= limit:
                waited -= job.num_slots * (state.now - job.since)
        known = state.waited[key] = waited / US
    return known


def _is_one_leaving(state: Pass) -> bool:
    held = state.cluster.held
    if any(is_large(state, held[num]) for num in state.cluster.stopping):
        return True
    return any(is_large(state, held[num]) for num in state.leaving)
