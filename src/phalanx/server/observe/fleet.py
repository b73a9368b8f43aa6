"""Platform counters, from the feed of all jobs' events.

They begin at 0 in every control plane process, as Prometheus expects of counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from phalanx.core.jobs.model import TERMINAL, Job, JobState
from phalanx.store.events import StoredEvent
from phalanx.store.lineage import CheckpointRow

SAVE_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAIT_BOUNDS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_US = 1e-6
_LEAVES = (JobState.STOPPING.value, JobState.QUEUED.value)
_HELD = ("starting", "running", "recovering", "stopping")


@dataclass(slots=True)
class BucketHistogram:
    """A histogram over fixed bounds."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Pairs of (upper bound, observations up to it)."""
        running, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            found.append((bound, running))
        return found


@dataclass(slots=True)
class PlatformCounters:
    """Counters since the start of this control plane process."""

    submitted: int = 0  # jobs
    finished: Counter[str] = field(default_factory=Counter)  # jobs, by terminal state
    restarts: Counter[str] = field(default_factory=Counter)  # by reason code
    job_restarts: dict[int, Counter[str]] = field(default_factory=dict)  # by live job and code
    checkpoints: Counter[str] = field(default_factory=Counter)  # committed and quarantined
    checkpoint_bytes: int = 0  # committed
    resumed: Counter[str] = field(default_factory=Counter)  # restores: exact or not_exact
    saves: BucketHistogram = field(default_factory=lambda: BucketHistogram(SAVE_BOUNDS))  # s
    waits: BucketHistogram = field(default_factory=lambda: BucketHistogram(WAIT_BOUNDS))  # s
    _states: dict[int, str] = field(default_factory=dict)  # last state of live jobs
    _queued_at: dict[int, int] = field(default_factory=dict)  # µs UTC, by queued job
    _restarts: dict[int, int] = field(default_factory=dict)  # restarts known of live jobs
    _charged: set[int] = field(
        default_factory=set
    )  # jobs that leave their slots by a counted failure

    def register(self, job: Job) -> None:
        """Register a job that existed before counting began."""
        self._states.setdefault(job.num, job.state.value)
        self._restarts.setdefault(job.num, job.restarts)
        if job.state is JobState.QUEUED:
            self._queued_at.setdefault(job.num, job.submitted_at)

    def add_events(self, fresh: Iterable[StoredEvent]) -> None:
        """Count new events."""
        for one in fresh:
            self._note(one)
            self._count_restart(one)
            before = self._states.get(one.job, "")
            if one.state and one.state != before:
                self._changed(one, before)

    def _note(self, one: StoredEvent) -> None:
        if one.kind == "submitted":
            self.submitted += 1
        elif one.kind == "checkpoint_quarantined":
            self.checkpoints["quarantined"] += 1
        elif one.kind == "restored" and one.data.get("path"):
            self.resumed["exact" if one.data.get("exact", True) else "not_exact"] += 1

    def _changed(self, one: StoredEvent, before: str) -> None:
        self._states[one.job] = one.state
        if one.state == JobState.QUEUED.value:
            self._queued_at[one.job] = one.at
            if before in _HELD and one.job not in self._charged:
                self._add_restart(one)  # an eviction, a move, a new size: no failure was charged
            self._charged.discard(one.job)
        elif one.state == JobState.STARTING.value and one.job in self._queued_at:
            self.waits.observe(max(0, one.at - self._queued_at.pop(one.job)) * _US)
        if one.state in TERMINAL:
            self.finished[one.state] += 1
            self._charged.discard(one.job)
            for known in (self._states, self._queued_at, self.job_restarts, self._restarts):
                known.pop(one.job, None)

    def _count_restart(self, one: StoredEvent) -> None:
        """Count a restart when it is charged, also where the job's state stays the same.

        Ranks that cannot be started are started again in place, and the job is `starting` all the time.
        """
        if one.restarts is None:
            return
        known = self._restarts.get(one.job, 0)
        self._restarts[one.job] = one.restarts
        if one.restarts > known:
            self._add_restart(one)
            if one.state in _LEAVES:
                self._charged.add(one.job)

    def _add_restart(self, one: StoredEvent) -> None:
        self.restarts[one.reason_code] += 1
        self.job_restarts.setdefault(one.job, Counter())[one.reason_code] += 1

    def add_checkpoints(self, rows: Iterable[CheckpointRow]) -> None:
        """Count new checkpoints."""
        for row in rows:
            self.checkpoints["committed"] += 1
            self.checkpoint_bytes += row.size_bytes
            if row.took_s is not None:
                self.saves.observe(row.took_s)
