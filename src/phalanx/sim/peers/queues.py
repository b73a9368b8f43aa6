"""Schedulers without preemption: FIFO, FIFO-skip, shortest job first."""

from __future__ import annotations

import random
from collections.abc import Callable

from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob
from phalanx.core.scheduling.index.slots import Allocation, SlotIndex, pick
from phalanx.core.scheduling.index.topology import place, request_of
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.sim.model import Oracle

Placer = Callable[[ClusterIndex, QueuedJob], list[Allocation] | None]


def best_fit(cluster: ClusterIndex, job: QueuedJob) -> list[Allocation] | None:
    """The production placement: the smallest domain, best fit, or wait."""
    eq_class = cluster.class_of.get(job.num)
    if eq_class is not None:
        # All jobs of the class have the same request, which is cached.
        return place(cluster.index, eq_class.request, eq_class.groups, job.shape)
    request = request_of(job)
    return place(cluster.index, request, cluster.groups_for(request), job.shape)


def first_fit(cluster: ClusterIndex, job: QueuedJob) -> list[Allocation] | None:
    """Any free slots in node order, however scattered."""
    index: SlotIndex = cluster.index
    left = job.num_slots
    if sum(group.num_free for group in index.groups) < left:
        return None
    allocations = []
    for node, free in enumerate(index.free):
        if not free or index.nodes[node].closed:
            continue
        mask = pick(free, min(left, free.bit_count()))
        allocations.append(Allocation(node, mask))
        left -= mask.bit_count()
        if not left:
            return allocations
    return None


class Fifo:
    """First come, first served; with `skip`, jobs that do not fit are passed over."""

    def __init__(self, name: str, placer: Placer, skip: int) -> None:
        self.name = name
        self._placer = placer
        self._skip = skip

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Walk the queue; give up at the first blocked job, or after `skip` blocked shapes."""
        state = new_draft(cluster, now)
        order = sorted(cluster.waiting.values(), key=lambda job: (job.since, job.num))
        fill(state, order, self._placer, self._skip)
        return finish(state)


class Shortest:
    """Shortest slot-seconds first, by the true value times a log-normal error."""

    def __init__(self, name: str, sigma: float, seed: int = 0) -> None:
        self.name = name
        self._sigma = sigma
        self._seed = seed

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Walk the queue in order of predicted work."""
        state = new_draft(cluster, now)

        def work(job: QueuedJob) -> tuple[float, int]:
            blur = 1.0
            if self._sigma:
                rng = random.Random(self._seed * 1_000_003 + job.num)
                blur = 2.718281828 ** rng.gauss(0.0, self._sigma)
            return (oracle.remaining_s(job.num) * blur * job.num_slots, job.num)

        fill(state, sorted(cluster.waiting.values(), key=work), best_fit, ALL_SHAPES)
        return finish(state)


ALL_SHAPES = 1 << 30
"""Pass over any number of blocked shapes."""


def new_draft(cluster: ClusterIndex, now: int) -> Pass:
    """A pass without quotas."""
    cluster.advance(now)
    return Pass(cluster, now)


def finish(state: Pass) -> Plan:
    """Roll the index back and return the plan."""
    state.index.rollback(0)
    return state.decisions.plan(None)


def fill(state: Pass, order: list[QueuedJob], placer: Placer, skip: int) -> None:
    """Start what fits, in order; stop after `skip` blocked shapes."""
    failed: set[object] = set()
    for job in order:
        key = job.shape
        if key in failed or job.num in state.decisions.started:
            continue
        allocations = placer(state.cluster, job)
        if allocations is None:
            failed.add(key)
            if len(failed) > skip:
                return
            continue
        state.start(job, allocations)
