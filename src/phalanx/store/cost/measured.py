"""What advice about cost reads besides the ledger: samples of metrics, pools, and repeated work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite

from sqlalchemy import bindparam, func, select

from phalanx.core.cost.ledger import Account
from phalanx.store.database import Tx
from phalanx.store.metrics.arrivals import decoded
from phalanx.store.schema.metrics import metric_chunks, metric_names
from phalanx.store.tables import checkpoints, cost_days, jobs

_CHUNKS = metric_chunks.c
_SAMPLES = 8
_RANGE = select(func.min(_CHUNKS.id), func.max(_CHUNKS.id)).where(_CHUNKS.job == bindparam("_job"))
_FROM = (
    select(_CHUNKS.id, _CHUNKS.data)
    .where(_CHUNKS.job == bindparam("_job"), _CHUNKS.id >= bindparam("_id"))
    .order_by(_CHUNKS.id)
    .limit(1)
)


def jobs_with(tx: Tx, nums: Sequence[int], names: Sequence[str]) -> dict[int, set[str]]:
    """Which of these metrics some jobs have reported, by job; jobs with none are left out."""
    here = metric_names.c
    query = select(here.job, here.name).where(here.job.in_(nums), here.name.in_(names))
    found: dict[int, set[str]] = {}
    for job, name in tx.conn.execute(query):
        found.setdefault(job, set()).add(name)
    return found


def mean_of_samples(tx: Tx, job: int, name: str) -> float | None:
    """The mean of a metric over all ranks in a few chunks from the whole life of a job; None: no value."""
    first, last = tx.conn.execute(_RANGE, {"_job": job}).one()
    if first is None:
        return None
    ids = [first + (last - first) * index // (_SAMPLES - 1) for index in range(_SAMPLES)]
    chunks = dict(tx.conn.execute(_FROM, {"_job": job, "_id": number}).one() for number in ids)
    columns = (decoded(number, data, (name,)).columns for number, data in chunks.items())
    found = (one.values[name][1].tolist() for one in columns if name in one.values)
    values = [value for part in found for value in part if isfinite(value)]
    return sum(values) / len(values) if values else None


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """What the price of a job's slots depends on, and whether the job can resume."""

    pool: str  # of the newest placement
    slot_type: str  # that it asked for; empty: any
    resumes: bool  # it has saved a checkpoint


def placed_jobs(tx: Tx, nums: Sequence[int]) -> dict[int, PlacedJob]:
    """The newest placements of those of these jobs that had one."""
    saved = select(checkpoints.c.job).where(checkpoints.c.job.in_(nums)).distinct()
    resuming = set(tx.conn.execute(saved).scalars())
    here = jobs.c
    query = select(here.num, here.pool, here.slot_type).where(
        here.num.in_(nums), here.pool.is_not(None)
    )
    return {
        num: PlacedJob(pool, slot_type, num in resuming)
        for num, pool, slot_type in tx.conn.execute(query)
    }


def interrupted_in(tx: Tx, pools: Collection[str]) -> tuple[int, int]:
    """(held, made again or lost to preemptions) in all settled slot time of some pools."""
    here = cost_days.c
    held = sum(here[one.value] for one in Account if one is not Account.QUEUED)
    again = here.redone + here.lost_to_preemption
    query = select(func.sum(held), func.sum(again)).where(here.pool.in_(list(pools)))
    found, lost = tx.conn.execute(query).one()
    return int(found or 0), int(lost or 0)
