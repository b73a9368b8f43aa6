"""Restarts of a job and their cost, its checkpoints, and the samples that it consumed."""

from __future__ import annotations

from collections.abc import Sequence, Set

from phalanx.core.codec import decode
from phalanx.core.jobs.events import (
    LaunchFailed,
    NodeLost,
    RankFailed,
    RanksEnded,
    RanksStalled,
    StacksCaptured,
    StopRequested,
)
from phalanx.core.jobs.model import Job, StopGoal
from phalanx.core.training.ledger import (
    Consumed,
    GenerationLedger,
    LedgerSummary,
    Point,
    audit,
    merge,
)
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.jobs import LineageView, RestartView
from phalanx.store import events, lineage, supervisors
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.lineage import GenerationRow, LedgerSlice, RestoreRow

_COMPARED = "stacks_captured"
_FAILED: dict[
    str, type[RankFailed] | type[RanksStalled] | type[StacksCaptured] | type[RanksEnded]
] = {
    "rank_failed": RankFailed,
    "ranks_stalled": RanksStalled,
    _COMPARED: StacksCaptured,
    "ranks_ended": RanksEnded,
}
_ENDINGS = (*_FAILED, "node_lost", "launch_failed", "stop_requested")


def lineage_view(tx: Tx, job: Job) -> LineageView:
    """The lineage of a job, as `show` displays it."""
    rows = lineage.generations_of(tx, job.num)
    restores = lineage.restores_of(tx, job.num)
    endings = events.of_job(tx, job.num, limit=100_000, kinds=_ENDINGS)
    restarts = restarts_of(endings, rows)
    slices = lineage.ledger_of(tx, job.num)
    saved = lineage.count_checkpoints(tx, job.num)
    copies = lineage.count_copies(tx, job.num)
    num_samples = max((s.num_samples for s in slices if s.num_samples is not None), default=None)
    silent = supervisors.silent_attempts(tx, job.num)
    if job.attempt is not None:
        silent.discard(job.attempt.num)
    counted = None if num_samples is None else account(slices, restores, num_samples, silent)
    return LineageView.of(
        counted,
        generations=len(rows),
        restarts=restarts,
        lost_s=round(sum(one.lost_s or 0.0 for one in restarts), 3),
        num_checkpoints=sum(saved.values()),
        num_valid=saved.get("valid", 0),
        num_quarantined=saved.get("quarantined", 0),
        num_stored=copies.get("stored", 0),
        num_uploading=copies.get("uploading", 0),
        num_samples=num_samples,
        exact=all(one.exact for one in restores) if restores else None,
    )


def account(
    slices: Sequence[LedgerSlice],
    restores: Sequence[RestoreRow],
    num_samples: int,
    silent: Set[int] = frozenset(),
) -> LedgerSummary:
    """Summarize the data that the lineage of the newest weights consumed.

    `silent` are ended attempts of which a supervisor never reported its exit.
    """
    began = {(one.attempt, one.generation): (one.epoch, one.position) for one in restores}
    consumed: dict[tuple[int, int], list[Consumed]] = {key: [] for key in began}
    for one in slices:
        consumed.setdefault((one.attempt, one.generation), []).extend(one.rows)
    for attempt in silent - {attempt for attempt, _ in consumed}:
        consumed[attempt, 0] = []
    generations = [
        GenerationLedger(*key, began.get(key), merge(rows), all_reported=key[0] not in silent)
        for key, rows in consumed.items()
    ]
    return audit(generations, num_samples=num_samples, until=_head(generations, num_samples))


def _head(generations: Sequence[GenerationLedger], num_samples: int) -> Point:
    """The point of the data that the newest weights have reached."""
    head: Point = (0, 0)
    for one in sorted(generations, key=lambda g: (g.attempt, g.generation)):
        if one.began is not None:
            head = one.began
        head = max([head, *((row.epoch, row.hi) for row in one.rows)])
    return (head[0] + 1, 0) if head[1] >= num_samples else head


def restarts_of(endings: Sequence[StoredEvent], rows: Sequence[GenerationRow]) -> list[RestartView]:
    """Every generation that was interrupted, and the time until the next completed step."""
    failed: dict[tuple[int, int], RestartView] = {}
    for line in endings:
        if line.kind == _COMPARED and line.data.get("excuse"):
            # Ranks of this node had a good reason for the pause: no stall.
            failed.pop((line.attempt or 0, line.generation or 0), None)
        said = _failure(line)
        if said is None or line.attempt is None:
            continue
        key = (line.attempt, -1 if line.generation is None else line.generation)
        if key[1] < 0:
            ours = [row.generation for row in rows if row.attempt == line.attempt]
            key = (line.attempt, max(ours, default=0))
        # The stacks of all nodes may name another rank than those of the node that saw the stall.
        if key not in failed or line.kind == _COMPARED:
            cause, message, at = said
            failed[key] = RestartView(
                attempt=key[0],
                generation=key[1],
                cause=cause,
                message=message,
                failed_at=at_of(at),
            )
    return [_with_cost(one, rows) for _, one in sorted(failed.items())]


def _failure(line: StoredEvent) -> tuple[str, str, int] | None:
    """(cause, message, at) of an event that ended a generation."""
    if line.kind == "stop_requested":
        # Evictions and moves; a stop or pause by a user is not an interruption.
        asked = decode(StopRequested, line.data)
        if asked.goal is not StopGoal.REQUEUE:
            return None
        return asked.reason.code.value, asked.reason.message, line.at
    if line.kind in _FAILED and line.data.get("failure") is not None:
        failure = decode(_FAILED[line.kind], line.data).failure
        if failure is None or failure.collateral:
            return None
        return failure.cause.value, failure.message, min(failure.at, line.at)
    if line.kind in ("node_lost", "launch_failed") and line.state in (
        "stopping",
        "queued",
        "failed",
    ):
        if line.kind == "node_lost":
            lost = decode(NodeLost, line.data)
            return lost.cause.value, lost.message, line.at
        not_launched = decode(LaunchFailed, line.data)
        return not_launched.cause.value, not_launched.message, line.at
    return None


def _with_cost(one: RestartView, rows: Sequence[GenerationRow]) -> RestartView:
    """The restart with its time, and the time until the next completed step."""
    by_key = {(row.attempt, row.generation): row for row in rows}
    here = (one.attempt, one.generation)
    later = [key for key, row in by_key.items() if key > here and row.first_step_at is not None]
    own = by_key.get(here)
    failed_at = one.failed_at
    if own is not None and own.failed_at is not None:
        failed_at = at_of(own.failed_at)
    next_at = at_or_none(by_key[min(later)].first_step_at) if later else None
    lost_s = None if next_at is None else max(0.0, (next_at - failed_at).total_seconds())
    return one.model_copy(
        update={"failed_at": failed_at, "next_step_at": next_at, "lost_s": lost_s}
    )
