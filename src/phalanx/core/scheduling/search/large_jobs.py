"""Large-job preemption: small jobs preempt a large peer once their waits equal its delay.

Otherwise a large job is never preempted by its peers, or it would stop for every short job in turn.
A few large jobs can hold a whole pool, however, while a thousand small jobs wait. When the small
jobs of a priority have together waited as many slot-seconds as a large job loses by stopping (its
pause, and the usual wait of its size until the next start), one large job is preempted. This bounds
the total wait at about twice the optimum, however long the large jobs run.
"""

from __future__ import annotations

from phalanx.core.scheduling.model.durations import size_class
from phalanx.core.scheduling.model.planning_input import US, RunningJob
from phalanx.core.scheduling.search.candidate_set import PendingGang
from phalanx.core.scheduling.search.victim_search import VictimSearch


def large_job_limit(search: VictimSearch, node: int) -> float:
    """Return the slots beyond which a job on nodes like this one counts as large."""
    group = search.index.group_of[node]
    return max(
        search.config.large_job_slots,
        search.config.large_job_fraction * group.num_nodes * group.size,
    )


def is_large(search: VictimSearch, held: RunningJob) -> bool:
    """Return whether a running job is too large to be preempted by peers."""
    if held.num_slots <= search.config.large_job_slots:
        return False
    nodes = search.cluster.nodes_of[held.job]
    return bool(nodes) and held.num_slots > large_job_limit(search, nodes[0])


def candidates(
    search: VictimSearch, gang: PendingGang, large_jobs: list[tuple[float, int]]
) -> dict[int, float]:
    """Return the large jobs that this gang may preempt, with the price of each.

    Empty while another one leaves: its slots often suffice for all waiting jobs.
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
    """Return the slot-seconds by which stopping this large job delays it."""
    again_s = search.cluster.history.requeue_s.get(size_class(held.num_slots), 0.0)
    pause_s = held.restart_s + (held.save_s or 0.0) + search.config.min_run_s
    return held.num_slots * (pause_s + again_s)


def _waited_slot_s(search: VictimSearch, gang: PendingGang) -> float:
    """Return the slot-seconds that small jobs of this priority have waited in the queue."""
    key = ("" if not search.shares else gang.job.project, gang.job.priority)
    known = search.waited.get(key)
    if known is None:
        project, priority = key
        limit, waiting, waited = search.ledger.largest_small(), search.cluster.waiting, 0
        for (owner, urgent, slots), queued in search.cluster.queued.items():
            if urgent == priority and slots <= limit and (not project or owner == project):
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
