"""The index of running jobs: ranked by learned urgency, with expected end times.

An entry changes only when a job starts, leaves or reaches another service bin, or when its kind
gains history; a pass pays for those changes, not for all running jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of, size_class
from phalanx.core.scheduling.model.planning_input import US, PlannerConfig, RunningJob
from phalanx.core.scheduling.model.urgency import (
    aged,
    base_of,
    bin_ends_at,
    expected_end,
    held_base,
    settled_end,
)

NEVER = 1 << 62
"""Later than any known time."""
_FEW = 16


@dataclass(slots=True)
class _Kind:
    """Running jobs of one kind, with their estimates by slots and service bin."""

    key: KindKey
    version: int = -1
    jobs: set[int] = field(default_factory=set)
    known: dict[int, tuple[float, float | None]] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    """A running job as of its last update. Without `scored` it is not preemptible."""

    held: RunningJob  # the job as it was added
    kind: _Kind  # jobs of its kind
    scored: bool = False  # whether it is in the ranking
    score: float = 0.0  # its urgency there
    spot: int = -1  # service bin; -1: not yet known
    due_at: int = NEVER  # when it leaves that bin
    settled: bool = False  # whether `end` holds throughout the bin
    end: int | None = None  # expected end; None: unknown
    #: (expected end, job), made once: a compiled planner would make such a pair anew at each reading.
    ending: Any = None
    ends_at: int = -1  # the end in `ending`
    gone: bool = False  # whether it was removed


@dataclass(slots=True)
class _Moves:
    """Positions in the ranking of one priority that jobs leave and take."""

    gone: dict[int, float] = field(default_factory=dict)
    fresh: list[tuple[float, int]] = field(default_factory=list)


class RunningIndex:
    """Scores and expected ends of running jobs; call `settle` before reading them."""

    def __init__(self, history: History, config: PlannerConfig) -> None:
        self.history = history
        self.config = config
        self.ranked: dict[int, list[tuple[float, int]]] = {}
        self._jobs: dict[int, _Job] = {}
        self._unscored: set[int] = set()
        self._kinds: dict[KindKey, _Kind] = {}
        self._num_observed = -1
        self._settled_at = -1
        self._in_order: list[_Job] = []
        self._added: list[_Job] = []

    def add(self, held: RunningJob) -> None:
        """Add a running job."""
        key = KindKey(held.project, held.kind, size_class(held.num_slots))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(key, self.history.version(key))
        kind.jobs.add(held.job)
        job = self._jobs[held.job] = _Job(held, kind)
        self._added.append(job)
        self._unscored.add(held.job)

    def remove(self, num: int) -> None:
        """Remove a job that no longer runs."""
        self._unscored.discard(num)
        job = self._jobs.pop(num)
        job.gone = True
        self._unrank(job)
        job.kind.jobs.discard(num)
        if not job.kind.jobs:
            del self._kinds[job.kind.key]

    def settle(self, now: int) -> None:
        """Bring every score and every expected end up to date."""
        if self._num_observed != self.history.num_observed:
            self._num_observed = self.history.num_observed
            for kind in self._kinds.values():
                version = self.history.version(kind.key)
                if kind.version != version:
                    kind.version = version
                    kind.known.clear()
                    self._unscored |= kind.jobs
        elif self._settled_at == now and not self._unscored:
            return
        self._settled_at = now
        # Checking all jobs costs less than keeping a queue of those that are due.
        self._unscored.update([num for num, job in self._jobs.items() if job.due_at <= now])
        moves: dict[int, _Moves] = {}
        for num in self._unscored:
            self._score(self._jobs[num], now, moves)
        self._unscored.clear()
        for priority, one in moves.items():
            self._rerank(priority, one)

    def _rerank(self, priority: int, moves: _Moves) -> None:
        """Apply rank changes: one sort for many, a binary search each for few."""
        ranked = self.ranked.setdefault(priority, [])
        gone = moves.gone
        if _FEW * len(moves.fresh) < len(ranked):
            for num, score in gone.items():
                del ranked[bisect_left(ranked, (score, num))]
            for entry in moves.fresh:
                insort(ranked, entry)
        else:
            every: list[Any] = ranked  # so that a compiled planner does not make the pairs anew
            stay = [one for one in every if one[1] not in gone]
            stay += moves.fresh
            stay.sort()
            self.ranked[priority] = stay

    def ends(self, now: int) -> list[tuple[int, int]]:
        """Return (expected end, job) of all running jobs, the earliest first; NEVER if unknown."""
        self.settle(now)
        soon = now + US
        # Nearly in the order of the last call, so that sorting is cheap.
        jobs = [job for job in chain(self._in_order, self._added) if not job.gone]
        self._in_order = jobs
        self._added.clear()
        for job in jobs:
            if not job.settled:
                end = expected_end(job.held, self.history, now)
            else:
                end = job.end
                if end is not None and end < soon:
                    end = soon
            at = NEVER if end is None else end
            if job.ends_at != at:
                job.ends_at = at
                job.ending = (at, job.held.job)
        jobs.sort(key=attrgetter("ending"))
        return [job.ending for job in jobs]

    def end_of(self, num: int, now: int) -> int | None:
        """Return the expected end of a running job; constant within a service bin."""
        job = self._jobs[num]
        if not job.settled:
            return expected_end(job.held, self.history, now)
        return None if job.end is None else max(job.end, now + US)

    def score_of(self, held: RunningJob, now: int) -> float:
        """The learned urgency of a running job."""
        base = held_base(held, bin_of(held.attained(now)), self.history, self.config)
        return aged(base, held.delayed_s, self.config)

    def _score(self, job: _Job, now: int, moves: dict[int, _Moves]) -> None:
        held = job.held
        if held.started_at is None or held.stopping:
            return
        if job.spot < 0 or job.due_at <= now:
            job.spot = bin_of(held.attained_slot_s + held.num_slots * (now - held.started_at) / US)
            job.due_at = bin_ends_at(held, job.spot)
        base, total = self._known(job, job.spot)
        if held.remaining_s is None:
            job.settled, job.end = True, settled_end(held, total)
        score = aged(base, held.delayed_s, self.config) if held.delayed_s else base
        if held.preemptible and not (job.scored and score == job.score):
            here = moves.get(held.priority)
            if here is None:
                here = moves[held.priority] = _Moves()
            if job.scored:
                here.gone[held.job] = job.score
            here.fresh.append((score, held.job))
            job.scored, job.score = True, score

    def _known(self, job: _Job, spot: int) -> tuple[float, float | None]:
        """Return the urgency before waits and the expected total service of a job in this bin."""
        held, kind = job.held, job.kind
        at = held.num_slots * len(EDGES) + spot
        known = kind.known.get(at)
        if known is None:
            known = kind.known[at] = (
                base_of(held.num_slots, self.history.index(kind.key, spot), self.config),
                self.history.total_slot_s(kind.key, EDGES[spot], 0.75),
            )
        if held.remaining_s is not None or held.max_duration_s is not None:
            return held_base(held, spot, self.history, self.config), known[1]
        return known

    def _unrank(self, job: _Job) -> None:
        if job.scored:
            ranked = self.ranked[job.held.priority]
            del ranked[bisect_left(ranked, (job.score, job.held.job))]
            if not ranked:
                del self.ranked[job.held.priority]
            job.scored = False
