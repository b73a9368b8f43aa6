"""Elastic peers: slots are redistributed every round by measured speeds, as in Sia and Pollux.

Both use the true speed curve of every job and no durations. Each round gives slots one by one to
the job with the largest gain in fairness-powered speed (Sia's objective with p = -0.5, Pollux's
with p = -1; both are concave for such curves, so that this is their optimum), a change of size is
discounted by what the restart costs a job of that age, and no job more than doubles in a round.
Released slots are usable at once, without waiting for a save, which favors the peers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from phalanx.core.gang.placement import NodeShare, Placement
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob, Resize, RunningJob, Start
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.model.scaling import speed
from phalanx.sim.model import Oracle

_WHY = Reason(ReasonCode.PLACED, "a new division of the slots")


@dataclass(frozen=True, slots=True)
class _Job:
    num: int
    least: int
    most: int
    now: int
    age_s: float
    speeds: tuple[float, ...]


@dataclass(slots=True)
class GoodputShares:
    """One distribution a round. The lower `power` (below zero), the more even the speed-ups."""

    name: str
    power: float
    restart_s: float = 60.0

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Sizes for all, then shrinks, then growth and starts on what is free."""
        jobs = [_of_held(cluster.held[num], now) for num in sorted(cluster.elastic)]
        classes = [
            (since, num) for eq_class in cluster.classes.values() for since, num in eq_class.jobs
        ]
        jobs += [_of_waiting(cluster.waiting[num]) for _, num in sorted(classes)]
        total = sum(group.num_nodes * group.size for group in cluster.index.groups)
        return _carried_out(cluster, jobs, self._sizes(jobs, total))

    def _sizes(self, jobs: list[_Job], total: int) -> dict[int, int]:
        found: dict[int, int] = {}
        heap: list[tuple[float, int, _Job]] = []
        for job in jobs:
            if total >= job.least:
                found[job.num], total = job.least, total - job.least
                heapq.heappush(heap, (-self._gain(job, job.least), job.num, job))
        while heap and total > 0:
            gain, num, job = heapq.heappop(heap)
            top = min(job.most, max(2 * job.now, job.least) if job.now else job.most)
            if gain >= 0 or found[num] >= top:
                continue
            found[num], total = found[num] + 1, total - 1
            heapq.heappush(heap, (-self._gain(job, found[num]), num, job))
        return {job.num: self._settled(job, found) for job in jobs if job.num in found}

    def _gain(self, job: _Job, nodes: int) -> float:
        return self._value(job, nodes + 1) - self._value(job, nodes)

    def _value(self, job: _Job, nodes: int) -> float:
        ratio = speed(job.speeds, nodes) / speed(job.speeds, 1)
        return float(-(ratio**self.power))

    def _settled(self, job: _Job, found: dict[int, int]) -> int:
        """Return the new size if it still gains after the restart, else the current one."""
        wanted = found[job.num]
        if job.now == 0 or wanted <= job.now:
            return wanted
        keeps = max(job.age_s - self.restart_s, 0.0) / (job.age_s + self.restart_s)
        faster = speed(job.speeds, wanted) / speed(job.speeds, job.now)
        return wanted if faster * keeps > 1.05 else job.now


def _of_held(held: RunningJob, now: int) -> _Job:
    age_s = (now - (held.started_at or now)) / US
    most = held.max_nodes or len(held.placement.shares)
    now_at = len(held.placement.shares)
    return _Job(held.job, held.min_nodes or 1, most, now_at, age_s, held.speeds)


def _of_waiting(job: QueuedJob) -> _Job:
    least = job.min_nodes or job.shape.nodes
    return _Job(job.num, least, job.shape.nodes, 0, 0.0, job.speeds)


def _carried_out(cluster: ClusterIndex, jobs: list[_Job], sizes: dict[int, int]) -> Plan:
    index = cluster.index
    free = [
        (i, slot)
        for i, mask in enumerate(index.free)
        for slot in range(index.nodes[i].num_slots)
        if mask >> slot & 1 and not index.nodes[i].closed
    ]
    resizes, starts = [], []
    for job in jobs:
        size = sizes.get(job.num, job.now)
        if 0 < size < job.now:
            held = cluster.held[job.num]
            kept = replace_shares(held.placement, held.placement.shares[:size])
            for share in held.placement.shares[size:]:
                free += [(index.num_of[share.node], slot) for slot in share.slots]
            resizes.append(Resize(job.num, kept, _WHY))
    free.sort()
    for job in sorted(jobs, key=lambda one: one.now == 0):
        more = sizes.get(job.num, 0) - job.now
        if more <= 0 or len(free) < more:
            continue
        fresh = tuple(
            NodeShare(index.nodes[i].id, index.nodes[i].address, (slot,)) for i, slot in free[:more]
        )
        del free[:more]
        if job.now:
            held = cluster.held[job.num]
            wider = replace_shares(held.placement, held.placement.shares + fresh)
            resizes.append(Resize(job.num, wider, _WHY))
        else:
            starts.append(Start(job.num, Placement(index.nodes[0].pool, fresh)))
    return Plan(tuple(starts), (), resizes=tuple(resizes))


def replace_shares(placement: Placement, shares: tuple[NodeShare, ...]) -> Placement:
    """The placement with other shares."""
    return Placement(placement.pool, shares)


def sia_like() -> GoodputShares:
    """Sia's fairness power."""
    return GoodputShares("sia-like", -0.5)


def pollux_like() -> GoodputShares:
    """Pollux's fairness power."""
    return GoodputShares("pollux-like", -1.0)
