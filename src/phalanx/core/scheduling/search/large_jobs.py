"""Relief: a hero makes room for small jobs once those have waited for as long as that puts it off.

Among peers a hero is nobody's victim, or it would stop for every short job in turn. A few of them can hold
a whole pool, though, while a thousand small jobs wait. So who waits has to pay: when the small jobs of a
priority have together waited as many slot-seconds as a hero will lose by stopping (its pause, and the usual
wait of its size until it starts again), one hero leaves. However long the heroes would have run, the waits
come to at most about twice the least possible that way.
"""

from __future__ import annotations

from phalanx.core.scheduling.model.durations import size_class
from phalanx.core.scheduling.model.planning_input import US, RunningJob
from phalanx.core.scheduling.search.candidate_set import PendingGang
from phalanx.core.scheduling.search.victim_search import VictimSearch


def large_job_limit(search: VictimSearch, node: int) -> float:
    """The slots beyond which a job on nodes like this one counts as a hero."""
    group = search.index.group_of[node]
    return max(
        search.config.large_job_slots,
        search.config.large_job_fraction * group.num_nodes * group.size,
    )


def is_large(search: VictimSearch, held: RunningJob) -> bool:
    """Whether a running job is so large that its peers have to let it run."""
    if held.num_slots <= search.config.large_job_slots:
        return False
    nodes = search.cluster.nodes_of[held.job]
    return bool(nodes) and held.num_slots > large_job_limit(search, nodes[0])


def candidates(
    search: VictimSearch, gang: PendingGang, large_jobs: list[tuple[float, int]]
) -> dict[int, float]:
    """Heroes that this claim outweighs and whose loss has been paid for, with what stopping them costs.

    None while another leaves: what that frees is often enough for all who wait.
    """
    config, held_by = search.config, search.cluster.held
    found: dict[int, float] = {}
    if not large_jobs or gang.job.num_slots > search.ledger.largest_small():
        return found
    for score, num in large_jobs:
        held = held_by[num]
        search.decisions.num_steps += 1
        if score * config.hysteresis >= gang.urgency:
            break
        if search.shares and held.project != gang.job.project:
            continue
        if _put_off_slot_s(search, held) <= _waited_slot_s(search, gang):
            found[num] = search.price(held)
    return {} if found and _is_one_leaving(search) else found


def _put_off_slot_s(search: VictimSearch, held: RunningJob) -> float:
    """Slot-seconds by which stopping this hero puts it off."""
    again_s = search.cluster.history.requeue_s.get(size_class(held.num_slots), 0.0)
    pause_s = held.restart_s + (held.save_s or 0.0) + search.config.min_run_s
    return held.num_slots * (pause_s + again_s)


def _waited_slot_s(search: VictimSearch, gang: PendingGang) -> float:
    """Slot-seconds that the queued small jobs of this priority have waited since they queued last."""
    key = ("" if not search.shares else gang.job.project, gang.job.priority)
    known = search.waited.get(key)
    if known is None:
        project, priority = key
        limit, waiting, waited = search.ledger.largest_small(), search.cluster.waiting, 0
        for (whose, urgent, slots), queued in search.cluster.queued.items():
            if urgent == priority and slots <= limit and (not project or whose == project):
                waited += slots * (queued.num * search.now - queued.since)
        for num in search.decisions.started:
            job = waiting[num]
            mine = job.priority == priority and (not project or job.project == project)
            if mine and job.num_slots <= limit:
                waited -= job.num_slots * (search.now - job.since)
        known = search.waited[key] = waited / US
    return known


def _is_one_leaving(search: VictimSearch) -> bool:
    held = search.cluster.held
    if any(is_large(search, held[num]) for num in search.cluster.stopping):
        return True
    return any(is_large(search, held[num]) for num in search.decisions.leaving)
