"""Schedulers that order everybody, running or not, and let the best ones run.

2D-LAS (Tiresias): queues by attained slot time, first in first out inside a queue. SRPT: least work
left, by the truth; a bound, not a policy that anybody could run. Gittins: the learned index alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import Held, Hole, Plan, Preemption, Waiting, World
from phalanx.core.scheduling.draft import Draft
from phalanx.core.scheduling.estimates import bin_of
from phalanx.core.scheduling.order import kind_key
from phalanx.core.scheduling.planner import honour_holes
from phalanx.core.scheduling.slots import Taking
from phalanx.core.scheduling.snapshot import US
from phalanx.sim.engine import Truth
from phalanx.sim.peers.queues import best_fit, finish, new_draft

_QUEUES_SLOT_S = (3600.0, 36_000.0)


@dataclass(frozen=True, slots=True)
class Active:
    """A job that wants to run, running or not."""

    num: int
    slots: int
    attained_slot_s: float
    submitted_at: int
    waiting: Waiting | None
    held: Held | None


Key = Callable[[Active, World, Truth], float]


def las_key(active: Active, world: World, truth: Truth) -> float:
    """Queue by attained service, then age."""
    queue = sum(active.attained_slot_s >= edge for edge in _QUEUES_SLOT_S)
    return queue * 1e18 + active.submitted_at


def srpt_key(active: Active, world: World, truth: Truth) -> float:
    """True work left."""
    return truth.remaining_s(active.num) * active.slots


def gittins_key(active: Active, world: World, truth: Truth) -> float:
    """Learned index, best first."""
    if active.waiting is not None:
        kind = kind_key(active.waiting)
        return -world.history.index(kind, bin_of(active.attained_slot_s))
    held = active.held
    return 0.0 if held is None else -world.score_of(held, 0)


class Preemptive:
    """Run the best set that fits; `min_run_s` protects fresh starts."""

    def __init__(self, name: str, key: Key, min_run_s: float = 300.0) -> None:
        self.name = name
        self._key = key
        self._min_run_s = min_run_s
        self._submitted: dict[int, int] = {}

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """Order everybody, choose, evict the others as far as the chosen need it, fill the rest."""
        draft = new_draft(world, now)
        honour_holes(draft)
        ranked = self._rank(world, now, truth)
        left = sum(node.num_slots for node in world.index.nodes if not node.closed)
        chosen: set[int] = set()
        for _, active in ranked:
            if active.slots <= left:
                chosen.add(active.num)
                left -= active.slots
        victims = [
            a.held
            for _, a in reversed(ranked)
            if a.held is not None and a.num not in chosen and self._may_stop(a.held, now)
        ]
        owners = {hole.job for hole in draft.holes}
        for _, active in ranked:
            job = active.waiting
            if job is None or job.num not in chosen or job.num in draft.started | owners:
                continue
            takings = best_fit(world, job)
            if takings is not None:
                draft.start(job, takings)
            else:
                self._make_room(draft, job, victims)
        owners = {hole.job for hole in draft.holes}
        failed: set[object] = set()
        for _, active in ranked:
            job = active.waiting
            if job is None or job.num in draft.started | owners or job.shape in failed:
                continue
            takings = best_fit(world, job)
            if takings is None:
                failed.add(job.shape)
            else:
                draft.start(job, takings)
        return finish(draft)

    def _rank(self, world: World, now: int, truth: Truth) -> list[tuple[float, Active]]:
        everyone = []
        for job in world.waiting.values():
            self._submitted.setdefault(job.num, job.submitted_at)
            attained = job.attained_slot_s
            everyone.append(Active(job.num, job.num_slots, attained, job.submitted_at, job, None))
        for held in world.held.values():
            if not held.stopping:
                at = self._submitted.get(held.job, 0)
                attained = held.attained(now)
                everyone.append(Active(held.job, held.num_slots, attained, at, None, held))
        keyed = [(self._key(active, world, truth), active) for active in everyone]
        keyed.sort(key=lambda pair: (pair[0], pair[1].held is None, pair[1].num))
        return keyed

    def _may_stop(self, held: Held, now: int) -> bool:
        return (now - (held.started_at or 0)) / US >= self._min_run_s

    def _make_room(self, draft: Draft, job: Waiting, victims: list[Held]) -> None:
        """Take victims from the worst on until the gang fits; give up if it never does."""
        world, index = draft.world, draft.index
        if (
            sum(g.num_free for g in index.groups) + sum(v.num_slots for v in victims)
            < job.num_slots
        ):
            return
        mark = index.mark()
        taken: list[Held] = []
        takings: list[Taking] | None = None
        for held in victims:
            for taking in index.takings(held.placement, 0, 0):
                index.give(taking)
            taken.append(held)
            takings = best_fit(world, job)
            if takings is not None:
                break
        index.rollback(mark)
        if takings is None:
            return
        nodes = {index.nodes[t.node].id for t in takings}
        useful = [h for h in taken if any(s.node in nodes for s in h.placement.shares)]
        save_s = max((h.save_s or 0.0 for h in useful), default=0.0)
        ready_at = draft.now + int(save_s * US)
        names = tuple(index.nodes[t.node].id for t in takings)
        hole = Hole(job.num, names, ready_at, ready_at + 900 * US, tuple(h.job for h in useful))
        draft.holes.append(hole)
        draft.block(hole, job.shape.slots_per_node)
        reason = Reason(ReasonCode.PREEMPTED, f"j-{job.num} goes first")
        for held in useful:
            victims.remove(held)
            draft.preemptions.append(Preemption(held.job, job.num, 0.0, reason))
