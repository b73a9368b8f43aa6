"""Schedulers that fill gaps by declared limits: EASY, conservative backfill, and Slurm's mixture.

Limits are the trace's own, or drawn as people write them: too long, and round.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable

from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob
from phalanx.core.scheduling.model.planning_input import US
from phalanx.sim.model import Oracle
from phalanx.sim.peers.queues import Placer, best_fit, finish, new_draft

_ROUND_LIMITS_S = (3600, 14_400, 43_200, 86_400, 259_200, 604_800, 2_592_000)
_DAY_S = 86_400.0
_DEPTH = 100


class UserLimits:
    """The limits that users declare, times a factor, kept while the job runs.

    A factor below 1 expects jobs to end before their limit, as most do.
    """

    def __init__(self, factor: float = 1.0, seed: int = 0) -> None:
        self._factor = factor
        self._seed = seed
        self._known: dict[int, float] = {}

    def of(self, job: QueuedJob, oracle: Oracle) -> float:
        """The declared limit in seconds."""
        known = self._known.get(job.num)
        if known is None:
            drawn = user_limit(self._seed, job.num, oracle.remaining_s(job.num))
            known = self._factor * (job.max_duration_s or drawn)
            self._known[job.num] = known
        return known

    def ends(self, cluster: ClusterIndex, now: int) -> list[tuple[int, int]]:
        """Return the latest ends of running jobs with their slots; overdue jobs end at once."""
        found = []
        for held in cluster.held.values():
            limit_s = self._known.get(held.job, _ROUND_LIMITS_S[-1])
            end = (held.started_at or 0) + int(limit_s * US)
            found.append((max(end, now + 60 * US), held.num_slots))
        return sorted(found)


def user_limit(seed: int, num: int, duration_s: float) -> float:
    """A limit of at least the duration, with the usual exaggeration."""
    rng = random.Random(seed * 1_000_003 + num)
    guess = duration_s * 1.1 * 2.718281828 ** abs(rng.gauss(0.0, 1.2))
    return float(next((x for x in _ROUND_LIMITS_S if x >= guess), _ROUND_LIMITS_S[-1]))


Queue = Callable[[ClusterIndex, int], list[QueuedJob]]


def first_come(cluster: ClusterIndex, now: int) -> list[QueuedJob]:
    """By arrival."""
    return sorted(cluster.waiting.values(), key=lambda job: (job.since, job.num))


class Multifactor:
    """Slurm's priority: age, fair share with decay, size. Weights of its own documentation's example.

    Age counts up to seven days; use is forgotten with a half-life. A negative weight of the size
    favors small jobs, as `PriorityFavorSmall` does.
    """

    def __init__(
        self,
        age: float = 1000.0,
        fair: float = 10_000.0,
        size: float = 1000.0,
        half_life_s: float = 7 * _DAY_S,
    ) -> None:
        self._weights = (age, fair, size)
        self._half_life_s = half_life_s
        self._used: dict[str, float] = {}
        self._at = 0

    def __call__(self, cluster: ClusterIndex, now: int) -> list[QueuedJob]:
        """Highest priority first; of equals, by arrival."""
        self._note(cluster, now)
        total = sum(self._used.values())
        slots = sum(node.num_slots for node in cluster.index.nodes)
        names = {job.project for job in cluster.waiting.values()} | set(self._used)
        weight = {name: _weight(cluster, name) for name in names}
        sum_weights = max(sum(weight.values()), 1e-9)
        age_w, fair_w, size_w = self._weights

        def priority(job: QueuedJob) -> tuple[float, int, int]:
            age = min((now - job.since) / US / (7 * _DAY_S), 1.0)
            part = self._used.get(job.project, 0.0) / total if total > 0 else 0.0
            fair = 2.0 ** (-part * sum_weights / max(weight[job.project], 1e-9))
            value = age_w * age + fair_w * fair + size_w * job.num_slots / slots
            return (-value - 100_000.0 * job.priority, job.since, job.num)

        return sorted(cluster.waiting.values(), key=priority)

    def _note(self, cluster: ClusterIndex, now: int) -> None:
        gone_s = (now - self._at) / US
        self._at = now
        keep = 0.5 ** (gone_s / self._half_life_s)
        self._used = {name: used * keep for name, used in self._used.items()}
        for name, slots in cluster.used.items():
            self._used[name] = self._used.get(name, 0.0) + slots * gone_s


def _weight(cluster: ClusterIndex, name: str) -> float:
    project = cluster.projects.get(name)
    if project is None:
        return 1.0
    return float(project.guaranteed_slots or project.weight)


class Easy:
    """EASY: one reservation for the head, backfill behind it; `queue` orders the jobs.

    `factor` multiplies the declared limits. `shortest` tries the jobs behind the head in order of
    their limits, as EASY-SJBF does.
    """

    def __init__(
        self,
        name: str,
        queue: Queue = first_come,
        placer: Placer = best_fit,
        factor: float = 1.0,
        shortest: bool = False,
    ) -> None:
        self.name = name
        self._queue = queue
        self._placer = placer
        self._shortest = shortest
        self._limits = UserLimits(factor)

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Start the head; a later job may start if it does not delay the head."""
        state = new_draft(cluster, now)
        shadow: float | None = None
        extra = 0
        failed: set[object] = set()
        for job in self._ordered(cluster, now, oracle):
            limit_s = self._limits.of(job, oracle)
            late = shadow is not None and now + limit_s * US > shadow
            if job.shape in failed or (late and job.num_slots > extra):
                continue
            allocations = self._placer(cluster, job)
            if allocations is None:
                failed.add(job.shape)
                if shadow is None:
                    shadow, extra = self._shadow(cluster, job, now)
                continue
            state.start(job, allocations)
            extra -= job.num_slots if late else 0
        return finish(state)

    def _ordered(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> list[QueuedJob]:
        jobs = self._queue(cluster, now)
        if self._shortest and jobs:
            jobs[1:] = sorted(jobs[1:], key=lambda job: self._limits.of(job, oracle))
        return jobs

    def _shadow(self, cluster: ClusterIndex, head: QueuedJob, now: int) -> tuple[float, int]:
        free = sum(group.num_free for group in cluster.index.groups)
        for end, slots in self._limits.ends(cluster, now):
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
    """Conservative backfill: a job starts early only if it delays no earlier reservation.

    The first `depth` blocked jobs get one each pass, as Slurm's backfill looks at so many.
    """

    def __init__(
        self, name: str, queue: Queue = first_come, depth: int = _DEPTH, factor: float = 1.0
    ) -> None:
        self.name = name
        self._queue = queue
        self._depth = depth
        self._limits = UserLimits(factor)

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Walk the queue along the profile of free slots."""
        state = new_draft(cluster, now)
        free = sum(group.num_free for group in cluster.index.groups)
        profile = Profile(now, free, self._limits.ends(cluster, now))
        num_blocked = 0
        refused: set[object] = set()
        for job in self._queue(cluster, now):
            limit_s = self._limits.of(job, oracle)
            for_us, key = int(limit_s * US), (job.shape, limit_s)
            if num_blocked >= self._depth and key in refused:
                continue
            start = profile.earliest(job.num_slots, for_us)
            allocations = best_fit(cluster, job) if start == now else None
            if allocations is not None:
                state.start(job, allocations)
            else:
                refused.add(key)
                num_blocked += 1
            if start is not None and (allocations is not None or num_blocked <= self._depth):
                profile.take(start, for_us, job.num_slots)
        return finish(state)


def easy(factor: float = 1.0, shortest: bool = False) -> Easy:
    """By arrival; `factor` and `shortest` as in `Easy`."""
    return Easy("easy", factor=factor, shortest=shortest)


def slurm_like(
    age: float = 1000.0,
    fair: float = 10_000.0,
    size: float = 1000.0,
    half_life_s: float = 7 * _DAY_S,
    factor: float = 1.0,
) -> Easy:
    """Multifactor priority, and backfill behind the head."""
    return Easy("slurm-like", Multifactor(age, fair, size, half_life_s), factor=factor)
