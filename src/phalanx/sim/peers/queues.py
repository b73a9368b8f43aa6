"""Schedulers that never take anything back: FIFO, FIFO-skip, shortest job first."""

from __future__ import annotations

import random
from collections.abc import Callable

from phalanx.core.scheduling import Plan, Waiting, World
from phalanx.core.scheduling.index.slots import SlotIndex, Taking, pick
from phalanx.core.scheduling.index.topology import ask_of, place
from phalanx.core.scheduling.stages.scheduling_pass import Draft
from phalanx.sim.cluster.engine import Truth

Placer = Callable[[World, Waiting], list[Taking] | None]


def best_fit(world: World, job: Waiting) -> list[Taking] | None:
    """The production placement: the smallest domain, best fit, or wait."""
    line = world.line_of.get(job.num)
    if line is not None:
        # What its line asks for is what it asks for, and known already.
        return place(world.index, line.ask, line.groups, job.shape)
    ask = ask_of(job)
    return place(world.index, ask, world.groups_for(ask), job.shape)


def first_fit(world: World, job: Waiting) -> list[Taking] | None:
    """Any free slots in node order, however scattered."""
    index: SlotIndex = world.index
    left = job.num_slots
    if sum(group.num_free for group in index.groups) < left:
        return None
    takings = []
    for node, free in enumerate(index.free):
        if not free or index.nodes[node].closed:
            continue
        mask = pick(free, min(left, free.bit_count()))
        takings.append(Taking(node, mask))
        left -= mask.bit_count()
        if not left:
            return takings
    return None


class Fifo:
    """First come, first served; with `skip`, whoever does not fit is passed over."""

    def __init__(self, name: str, placer: Placer, skip: int) -> None:
        self.name = name
        self._placer = placer
        self._skip = skip

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """Walk the queue; give up at the first blocked job, or after `skip` blocked shapes."""
        draft = new_draft(world, now)
        order = sorted(world.waiting.values(), key=lambda job: (job.since, job.num))
        fill(draft, order, self._placer, self._skip)
        return finish(draft)


class Shortest:
    """Shortest slot-seconds first, by the truth blurred with a log-normal error."""

    def __init__(self, name: str, sigma: float, seed: int = 0) -> None:
        self.name = name
        self._sigma = sigma
        self._seed = seed

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """Walk the queue in order of predicted work."""
        draft = new_draft(world, now)

        def work(job: Waiting) -> tuple[float, int]:
            blur = 1.0
            if self._sigma:
                rng = random.Random(self._seed * 1_000_003 + job.num)
                blur = 2.718281828 ** rng.gauss(0.0, self._sigma)
            return (truth.remaining_s(job.num) * blur * job.num_slots, job.num)

        fill(draft, sorted(world.waiting.values(), key=work), best_fit, EVERYBODY)
        return finish(draft)


EVERYBODY = 1 << 30
"""Pass over any number of blocked shapes."""


def new_draft(world: World, now: int) -> Draft:
    """A pass without quotas."""
    world.ripen(now)
    draft = Draft(world, now, {}, dict(world.used))
    draft.mark = world.index.mark()
    return draft


def finish(draft: Draft) -> Plan:
    """Close the pass."""
    draft.index.rollback(draft.mark)
    return Plan(tuple(draft.starts), (), None, tuple(draft.preemptions), tuple(draft.holes))


def fill(draft: Draft, order: list[Waiting], placer: Placer, skip: int) -> None:
    """Start what fits, in order; stop after `skip` blocked shapes."""
    failed: set[object] = set()
    for job in order:
        key = job.shape
        if key in failed or job.num in draft.started:
            continue
        takings = placer(draft.world, job)
        if takings is None:
            failed.add(key)
            if len(failed) > skip:
                return
            continue
        draft.start(job, takings)
