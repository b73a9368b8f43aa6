"""Read the present jobs, and the metrics that ranks report, for the exposition of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.contract.records import MetricPoint
from phalanx.core.scheduling.model.entitlement import lineage as lineage_of
from phalanx.core.scheduling.model.entitlement import rolled_up
from phalanx.schemas.pools.project_file import ProjectSpec
from phalanx.services.platform import Platform
from phalanx.store import jobs, lineage, resources, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.lineage import GenerationRow
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
    saved_at: int | None = None  # newest checkpoint, µs UTC; None: it has none
    saved_before_at: int | None = None  # the checkpoint before it
    up_at: int | None = None  # all ranks of the generation run; None: not yet


@dataclass(frozen=True, slots=True)
class Present:
    """The current jobs: the number in each state, the queued ones, and those that hold slots."""

    by_state: dict[str, int]
    queued: list[StoredJob]
    live: list[LiveJob]
    guaranteed_waiting: int = 0  # queued jobs that fit into a guarantee which is not used


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
    saves, begun = lineage.save_times(tx), lineage.generations_of_attempts(tx, attempts)
    live = [_live(one, rows.get(one.job.num, []), saves, begun) for one in holding]
    return Present(jobs.count_by_state(tx), queued, live, _guaranteed_waiting(tx, queued, holding))


def _live(
    stored: StoredJob,
    rows: list[SupervisorRow],
    saves: Mapping[int, tuple[int, int | None]],
    begun: Mapping[tuple[int, int], Mapping[int, GenerationRow]],
) -> LiveJob:
    steps = [row.step for row in rows if row.step is not None]
    epochs = [row.epoch for row in rows if row.epoch is not None]
    saved_at, before_at = saves.get(stored.job.num, (None, None))
    attempt = stored.job.attempt
    generation = None
    if attempt is not None:
        generation = begun.get((stored.job.num, attempt.num), {}).get(attempt.generation)
    return LiveJob(
        stored,
        min(steps, default=None),
        min(epochs, default=None),
        saved_at,
        before_at,
        None if generation is None else generation.up_at,
    )


def _guaranteed_waiting(tx: Tx, queued: Sequence[StoredJob], holding: Sequence[StoredJob]) -> int:
    """The queued jobs that fit into a guarantee which their project, or one above it, does not use."""
    tree = {one.name: ProjectSpec(**one.body).to_core() for one in resources.projects.now(tx)}
    if not any(one.guaranteed_slots for one in tree.values()):
        return 0
    held: dict[str, int] = {}
    for one in holding:
        if one.job.attempt is not None:
            held[one.facts.project] = held.get(one.facts.project, 0) + one.job.attempt.num_slots
    used = rolled_up(tree, held)
    return sum(
        any(
            used.get(above.name, 0) + one.job.policy.num_slots <= above.guaranteed_slots
            for above in lineage_of(tree, one.facts.project)
        )
        for one in queued
    )


def newest_points(platform: Platform, num: int) -> list[MetricPoint]:
    """A job's newest points, in order."""
    chunks = platform.store.view(lambda tx: arrivals.last_chunks(tx, num, num_chunks=NEWEST_CHUNKS))
    return [point for chunk in chunks for point in chunk.points]
