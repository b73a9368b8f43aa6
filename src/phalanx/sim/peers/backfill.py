"""Schedulers that fill gaps by declared limits: EASY, conservative backfill, and Slurm's mixture.

Limits are the trace's own, or drawn as people write them: too long, and round.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable

from phalanx.core.scheduling import Plan, Waiting, World
from phalanx.core.scheduling.model.snapshot import US
from phalanx.sim.cluster.engine import Truth
from phalanx.sim.peers.queues import Placer, best_fit, finish, new_draft

_ROUND_LIMITS_S = (3600, 14_400, 43_200, 86_400, 259_200, 604_800, 2_592_000)
_DAY_S = 86_400.0
_DEPTH = 100


class Limits:
    """What users declare, remembered for when the job runs."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._known: dict[int, float] = {}

    def of(self, job: Waiting, truth: Truth) -> float:
        """The declared limit in seconds."""
        known = self._known.get(job.num)
        if known is None:
            known = job.max_duration_s or user_limit(
                self._seed, job.num, truth.remaining_s(job.num)
            )
            self._known[job.num] = known
        return known

    def ends(self, world: World, now: int) -> list[tuple[int, int]]:
        """When running jobs end at the latest, and their slots; the overdue ones any moment."""
        found = []
        for held in world.held.values():
            limit_s = self._known.get(held.job, _ROUND_LIMITS_S[-1])
            end = (held.started_at or 0) + int(limit_s * US)
            found.append((max(end, now + 60 * US), held.num_slots))
        return sorted(found)


def user_limit(seed: int, num: int, duration_s: float) -> float:
    """A limit of at least the duration, with the usual exaggeration."""
    rng = random.Random(seed * 1_000_003 + num)
    guess = duration_s * 1.1 * 2.718281828 ** abs(rng.gauss(0.0, 1.2))
    return float(next((x for x in _ROUND_LIMITS_S if x >= guess), _ROUND_LIMITS_S[-1]))


Queue = Callable[[World, int], list[Waiting]]


def first_come(world: World, now: int) -> list[Waiting]:
    """By arrival."""
    return sorted(world.waiting.values(), key=lambda job: (job.since, job.num))


class Multifactor:
    """Slurm's priority: age, fair share with decay, size. Weights of its own documentation's example.

    Age counts up to seven days; use is forgotten with a half-life of seven days.
    """

    def __init__(self, age: float = 1000.0, fair: float = 10_000.0, size: float = 1000.0) -> None:
        self._weights = (age, fair, size)
        self._used: dict[str, float] = {}
        self._at = 0

    def __call__(self, world: World, now: int) -> list[Waiting]:
        """Highest priority first; of equals, by arrival."""
        self._note(world, now)
        total = sum(self._used.values())
        slots = sum(node.num_slots for node in world.index.nodes)
        names = {job.project for job in world.waiting.values()} | set(self._used)
        weight = {name: _weight(world, name) for name in names}
        sum_weights = max(sum(weight.values()), 1e-9)
        age_w, fair_w, size_w = self._weights

        def priority(job: Waiting) -> tuple[float, int, int]:
            age = min((now - job.since) / US / (7 * _DAY_S), 1.0)
            part = self._used.get(job.project, 0.0) / total if total > 0 else 0.0
            fair = 2.0 ** (-part * sum_weights / max(weight[job.project], 1e-9))
            value = age_w * age + fair_w * fair + size_w * job.num_slots / slots
            return (-value - 100_000.0 * job.priority, job.since, job.num)

        return sorted(world.waiting.values(), key=priority)

    def _note(self, world: World, now: int) -> None:
        gone_s = (now - self._at) / US
        self._at = now
        keep = 0.5 ** (gone_s / (7 * _DAY_S))
        self._used = {name: used * keep for name, used in self._used.items()}
        for name, slots in world.used.items():
            self._used[name] = self._used.get(name, 0.0) + slots * gone_s


def _weight(world: World, name: str) -> float:
    project = world.projects.get(name)
    if project is None:
        return 1.0
    return float(project.guaranteed_slots or project.weight)


class Easy:
    """One reservation for the head, backfill behind it; `queue` says who is the head."""

    def __init__(
        self, name: str, queue: Queue = first_come, placer: Placer = best_fit, seed: int = 0
    ) -> None:
        self.name = name
        self._queue = queue
        self._placer = placer
        self._limits = Limits(seed)

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """Start the head; whoever is behind may start if it does not delay the head."""
        draft = new_draft(world, now)
        shadow: float | None = None
        extra = 0
        failed: set[object] = set()
        for job in self._queue(world, now):
            limit_s = self._limits.of(job, truth)
            late = shadow is not None and now + limit_s * US > shadow
            if job.shape in failed or (late and job.num_slots > extra):
                continue
            takings = self._placer(world, job)
            if takings is None:
                failed.add(job.shape)
                if shadow is None:
                    shadow, extra = self._shadow(world, job, now)
                continue
            draft.start(job, takings)
            extra -= job.num_slots if late else 0
        return finish(draft)

    def _shadow(self, world: World, head: Waiting, now: int) -> tuple[float, int]:
        free = sum(group.num_free for group in world.index.groups)
        for end, slots in self._limits.ends(world, now):
            free += slots
            if free >= head.num_slots:
                return end, free - head.num_slots
        return float("inf"), 0


class Profile:
    """Free slots over time, in steps; times in microseconds."""

    def __init__(self, now: int, free: int, ends: list[tuple[int, int]]) -> None:
        self.times, self.free = [now], [free]
        for end, slots in ends:
            if end == self.times[-1]:
                self.free[-1] += slots
            else:
                self.times.append(end)
                self.free.append(self.free[-1] + slots)

    def earliest(self, slots: int, for_us: int) -> int | None:
        """The first moment from which so many are free for so long; None if there never are."""
        start: int | None = None
        for i, at in enumerate(self.times):
            if self.free[i] < slots:
                start = None
            elif start is None:
                start = at
            if start is not None:
                until = self.times[i + 1] if i + 1 < len(self.times) else None
                if until is None or until >= start + for_us:
                    return start
        return None

    def take(self, start: int, for_us: int, slots: int) -> None:
        """Keep slots for a time."""
        first, last = self._step(start), self._step(start + for_us)
        for i in range(first, last):
            self.free[i] -= slots

    def _step(self, at: int) -> int:
        i = bisect_right(self.times, at) - 1
        if self.times[i] != at:
            i += 1
            self.times.insert(i, at)
            self.free.insert(i, self.free[i - 1])
        return i


class Conservative:
    """Everybody has a reservation; a job starts early only if that delays no reservation before it.

    The first `depth` blocked jobs get one each pass, as Slurm's backfill looks at so many.
    """

    def __init__(self, name: str, queue: Queue = first_come, depth: int = _DEPTH) -> None:
        self.name = name
        self._queue = queue
        self._depth = depth
        self._limits = Limits()

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """Walk the queue along the profile of free slots."""
        draft = new_draft(world, now)
        free = sum(group.num_free for group in world.index.groups)
        profile = Profile(now, free, self._limits.ends(world, now))
        num_blocked = 0
        refused: set[object] = set()
        for job in self._queue(world, now):
            limit_s = self._limits.of(job, truth)
            for_us, key = int(limit_s * US), (job.shape, limit_s)
            if num_blocked >= self._depth and key in refused:
                continue
            start = profile.earliest(job.num_slots, for_us)
            takings = best_fit(world, job) if start == now else None
            if takings is not None:
                draft.start(job, takings)
            else:
                refused.add(key)
                num_blocked += 1
            if start is not None and (takings is not None or num_blocked <= self._depth):
                profile.take(start, for_us, job.num_slots)
        return finish(draft)


def slurm_like() -> Easy:
    """Multifactor priority, and backfill behind the head."""
    return Easy("slurm-like", Multifactor())
