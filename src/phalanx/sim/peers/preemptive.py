"""Schedulers that order all jobs, running or queued, and run the first ones that fit.

2D-LAS (Tiresias): queues by attained slot time. SRPT: least true work left; a bound, not a feasible
policy. Gittins: the learned index alone. Time-sharing policies are in `rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob, RunningJob
from phalanx.core.scheduling.model.durations import bin_of
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.model.urgency import kind_key
from phalanx.core.scheduling.stages.reservations import honour
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.sim.model import Oracle
from phalanx.sim.peers.queues import best_fit, finish, new_draft
from phalanx.sim.peers.victims import evict_for, in_the_way

AUTHORS_QUEUES_SLOT_S = (3250.0, 7200.0)
"""Service at which a job leaves the first and second queue in the code of Tiresias's authors."""
_PAPER_QUEUES_SLOT_S = (3600.0, 36_000.0)


@dataclass(slots=True)
class Active:
    """A running or queued job. Not frozen: each pass creates thousands."""

    num: int
    slots: int
    attained_slot_s: float
    submitted_at: int
    waiting: QueuedJob | None
    held: RunningJob | None


@dataclass(frozen=True, slots=True)
class Scene:
    """The input of an order: all jobs at one moment, and the true work left for oracles."""

    cluster: ClusterIndex
    now: int
    oracle: Oracle
    jobs: Sequence[Active]


Order = Callable[[Scene], list[Active]]
Key = Callable[[Active, Scene], float]


def by(key: Key) -> Order:
    """Return an order by a key, lowest first; ties: running jobs, then the lower number."""

    def order(scene: Scene) -> list[Active]:
        # Job numbers are unique, so that jobs themselves are never compared.
        keyed = [(key(one, scene), one.held is None, one.num, one) for one in scene.jobs]
        keyed.sort()
        return [one for _, _, _, one in keyed]

    return order


def srpt_key(active: Active, scene: Scene) -> float:
    """Return the true work left."""
    return scene.oracle.remaining_s(active.num) * active.slots


def gittins_key(active: Active, scene: Scene) -> float:
    """Learned index, best first."""
    if active.waiting is not None:
        kind = kind_key(active.waiting)
        return -scene.cluster.history.index(kind, bin_of(active.attained_slot_s))
    held = active.held
    return 0.0 if held is None else -scene.cluster.score_of(held, 0)


def las_key(limits_slot_s: Sequence[float]) -> Key:
    """2D-LAS: return the key that orders by queue of attained service, then by age."""

    def key(active: Active, scene: Scene) -> float:
        queue = sum(active.attained_slot_s >= limit for limit in limits_slot_s)
        return queue * 1e18 + active.submitted_at

    return key


class LeastAttained:
    """2D-LAS to the letter of its authors' simulator.

    A job enters the first queue at its end and sinks to the end of the next one at each limit. In a
    queue running jobs precede waiting ones: no job is evicted by its own queue, and a large gang
    waits until no smaller job does.
    """

    def __init__(self, limits_slot_s: Sequence[float] = AUTHORS_QUEUES_SLOT_S) -> None:
        self._limits = tuple(limits_slot_s)
        self._queues: list[list[int]] = [[] for _ in range(len(self._limits) + 1)]
        self._queue_of: dict[int, int] = {}

    def __call__(self, scene: Scene) -> list[Active]:
        """Return the jobs of the queues, one queue after another."""
        known = {active.num: active for active in scene.jobs}
        leaving = {num for num, held in scene.cluster.held.items() if held.stopping}
        for queue in self._queues:
            alive = [num for num in queue if num in known or num in leaving]
            # A stable sort: those that run first, otherwise as they stood.
            queue[:] = sorted(alive, key=lambda num: num not in known or known[num].held is None)
        self._queue_of = {n: i for i, queue in enumerate(self._queues) for n in queue}
        fresh = [active for active in scene.jobs if active.num not in self._queue_of]
        for active in sorted(fresh, key=lambda one: (one.submitted_at, one.num)):
            self._queues[0].append(active.num)
            self._queue_of[active.num] = 0
        for num in sorted(known):
            self._sink(known[num])
        return [known[num] for queue in self._queues for num in queue if num in known]

    def _sink(self, active: Active) -> None:
        now_in = self._queue_of[active.num]
        belongs = sum(active.attained_slot_s >= edge for edge in self._limits)
        if active.held is not None and belongs > now_in:
            self._queues[now_in].remove(active.num)
            self._queues[belongs].append(active.num)


class Preemptive:
    """Run the best set that fits; `min_run_s` protects fresh starts."""

    def __init__(self, name: str, order: Order, min_run_s: float = 300.0) -> None:
        self.name = name
        self._order = order
        self._min_run_s = min_run_s
        self._submitted: dict[int, int] = {}

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Order all jobs, choose, evict others as far as the chosen need it, fill the rest."""
        state = new_draft(cluster, now)
        honour(state)
        ranked = self._order(Scene(cluster, now, oracle, self._active(cluster, now)))
        left = sum(node.num_slots for node in cluster.index.nodes if not node.closed)
        chosen: set[int] = set()
        for active in ranked:
            if active.slots <= left:
                chosen.add(active.num)
                left -= active.slots
        victims = [
            a.held
            for a in reversed(ranked)
            if a.held is not None and a.num not in chosen and self._may_stop(a.held, now)
        ]
        for active in ranked:
            job = active.waiting
            if job is None or job.num not in chosen or _is_served(state, job):
                continue
            allocations = best_fit(cluster, job)
            if allocations is not None:
                state.start(job, allocations)
                continue
            for held in evict_for(state, job, victims, in_the_way):
                victims.remove(held)
        self._fill(state, ranked)
        return finish(state)

    def _fill(self, state: Pass, ranked: list[Active]) -> None:
        failed: set[object] = set()
        for active in ranked:
            job = active.waiting
            if job is None or job.shape in failed or _is_served(state, job):
                continue
            allocations = best_fit(state.cluster, job)
            if allocations is None:
                failed.add(job.shape)
            else:
                state.start(job, allocations)

    def _active(self, cluster: ClusterIndex, now: int) -> list[Active]:
        found = []
        for job in cluster.waiting.values():
            self._submitted.setdefault(job.num, job.submitted_at)
            attained = job.attained_slot_s
            found.append(Active(job.num, job.num_slots, attained, job.submitted_at, job, None))
        for held in cluster.held.values():
            if not held.stopping:
                at = self._submitted.get(held.job, 0)
                attained = held.attained(now)
                found.append(Active(held.job, held.num_slots, attained, at, None, held))
        return found

    def _may_stop(self, held: RunningJob, now: int) -> bool:
        return (now - (held.started_at or 0)) / US >= self._min_run_s


def _is_served(state: Pass, job: QueuedJob) -> bool:
    return job.num in state.decisions.started or any(
        reservation.job == job.num for reservation in state.decisions.reservations
    )


def las(
    limits_slot_s: Sequence[float] = _PAPER_QUEUES_SLOT_S, min_run_s: float = 300.0
) -> Preemptive:
    """2D-LAS that keeps the order of arrival in a queue.

    `limits_slot_s`: service at which a job leaves each queue but the last. `min_run_s`: time after a
    start in which a job is not preempted.
    """
    return Preemptive("las", by(las_key(limits_slot_s)), min_run_s)


def las_authors(
    limits_slot_s: Sequence[float] = AUTHORS_QUEUES_SLOT_S, min_run_s: float = 0.0
) -> Preemptive:
    """2D-LAS with the queues of its authors' code."""
    return Preemptive("las-authors", LeastAttained(limits_slot_s), min_run_s)


def gittins(min_run_s: float = 300.0) -> Preemptive:
    """The learned index alone."""
    return Preemptive("gittins", by(gittins_key), min_run_s)
