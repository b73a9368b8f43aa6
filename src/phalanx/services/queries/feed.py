"""Read new events, metrics and checkpoints of all jobs, for platform-wide metrics."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.contract.records import MetricPoint
from phalanx.services.platform import Platform
from phalanx.store import events, jobs, lineage, supervisors, telemetry
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.jobs import StoredJob
from phalanx.store.lineage import CheckpointRow
from phalanx.store.telemetry import MetricChunk

PAGE = 500
NEWEST_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Cursors:
    """The numbers of the last rows read."""

    feed: int
    chunk: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job that holds slots, and the progress that its ranks reported."""

    stored: StoredJob
    step: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class News:
    """A page of new rows; `more` is True when another page follows."""

    cursors: Cursors
    events: list[StoredEvent]
    chunks: list[MetricChunk]
    checkpoints: list[CheckpointRow]
    more: bool


@dataclass(frozen=True, slots=True)
class Present:
    """The current jobs: the number in each state, the queued ones, and those that hold slots."""

    by_state: dict[str, int]
    queued: list[StoredJob]
    live: list[LiveJob]


def newest(platform: Platform) -> Cursors:
    """Cursors after the newest rows."""

    def work(tx: Tx) -> Cursors:
        return Cursors(
            events.last_feed(tx), telemetry.last_chunk_id(tx), lineage.last_checkpoint_id(tx)
        )

    return platform.store.view(work)


def news(platform: Platform, since: Cursors, limit: int = PAGE) -> News:
    """The next page of rows after `since`, of all jobs."""

    def work(tx: Tx) -> News:
        fresh = events.feed(tx, after=since.feed, limit=limit)
        chunks = telemetry.chunks_after(tx, since.chunk, limit=limit)
        saved = lineage.checkpoints_after(tx, since.checkpoint, limit=limit)
        cursors = Cursors(
            fresh[-1].feed if fresh else since.feed,
            chunks[-1].id if chunks else since.chunk,
            saved[-1].id if saved else since.checkpoint,
        )
        more = limit in (len(fresh), len(chunks), len(saved))
        return News(cursors, fresh, chunks, saved, more)

    return platform.store.view(work)


def present(platform: Platform) -> Present:
    """The current jobs by state."""

    def work(tx: Tx) -> Present:
        queued, holding = jobs.waiting_and_holding(tx)
        return Present(jobs.count_by_state(tx), queued, [_live(tx, one) for one in holding])

    return platform.store.view(work)


def _live(tx: Tx, stored: StoredJob) -> LiveJob:
    attempt = stored.job.attempt
    rows = [] if attempt is None else supervisors.of_attempt(tx, stored.job.num, attempt.num)
    steps = [row.step for row in rows if row.step is not None]
    epochs = [row.epoch for row in rows if row.epoch is not None]
    return LiveJob(stored, min(steps, default=None), min(epochs, default=None))


def newest_points(platform: Platform, num: int) -> list[MetricPoint]:
    """A job's newest points, in order."""
    chunks = platform.store.view(
        lambda tx: telemetry.last_chunks(tx, num, num_chunks=NEWEST_CHUNKS)
    )
    return [point for chunk in chunks for point in chunk.points]
