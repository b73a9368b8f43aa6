"""Read the present jobs, and the metrics that ranks report, for the exposition of metrics."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.contract.records import MetricPoint
from phalanx.services.platform import Platform
from phalanx.store import jobs, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.metrics import arrivals
from phalanx.store.metrics.arrivals import MetricChunk
from phalanx.store.supervisors import SupervisorRow

PAGE = 500
NEWEST_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job that holds slots, and the progress that its ranks reported."""

    stored: StoredJob
    step: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Present:
    """The current jobs: the number in each state, the queued ones, and those that hold slots."""

    by_state: dict[str, int]
    queued: list[StoredJob]
    live: list[LiveJob]


def newest_chunk(platform: Platform) -> int:
    """The number of the newest chunk of metrics of any job."""
    return platform.store.view(arrivals.last_chunk_id)


def new_chunks(platform: Platform, after: int, limit: int = PAGE) -> tuple[list[MetricChunk], bool]:
    """The next reports of metrics after a number, of all jobs, and whether more follow."""
    return platform.store.view(lambda tx: arrivals.chunks_after(tx, after, limit=limit))


def present(tx: Tx) -> Present:
    """The current jobs by state."""
    queued, holding = jobs.waiting_and_holding(tx)
    attempts = [
        (one.job.num, one.job.attempt.num) for one in holding if one.job.attempt is not None
    ]
    rows: dict[int, list[SupervisorRow]] = {}
    for row in supervisors.of_attempts(tx, attempts):
        rows.setdefault(row.job, []).append(row)
    live = [_live(one, rows.get(one.job.num, [])) for one in holding]
    return Present(jobs.count_by_state(tx), queued, live)


def _live(stored: StoredJob, rows: list[SupervisorRow]) -> LiveJob:
    steps = [row.step for row in rows if row.step is not None]
    epochs = [row.epoch for row in rows if row.epoch is not None]
    return LiveJob(stored, min(steps, default=None), min(epochs, default=None))


def newest_points(platform: Platform, num: int) -> list[MetricPoint]:
    """A job's newest points, in order."""
    chunks = platform.store.view(lambda tx: arrivals.last_chunks(tx, num, num_chunks=NEWEST_CHUNKS))
    return [point for chunk in chunks for point in chunk.points]
