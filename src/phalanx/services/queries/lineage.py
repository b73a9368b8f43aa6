"""Faults of a job with their evidence and cost, its checkpoints, and the samples that it consumed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from phalanx.core.codec import decode
from phalanx.core.gang.failures import Failure
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
_ATTEMPT_ENDS = ("stopping", "queued", "failed")
_ENDINGS = (*_FAILED, "node_lost", "launch_failed", "stop_requested")
EVIDENCE_LINES = 12
"""Lines of a traceback or of stacks that a fault shows; `phalanx show` and `phalanx stacks` have all."""
_EVIDENCE_CHARS = 2_000
_US = 1e6


def lineage_view(tx: Tx, job: Job) -> LineageView:
    """The lineage of a job, as `show` displays it."""
    rows = lineage.generations_of(tx, job.num)
    endings = events.of_job(tx, job.num, limit=100_000, kinds=_ENDINGS)
    restores = lineage.restores_of(tx, job.num)
    restarts = restarts_of(endings, rows, restores, job)
    slices = lineage.ledger_of(tx, job.num)
    saved = lineage.count_checkpoints(tx, job.num)
    copies = lineage.count_copies(tx, job.num)
    num_samples = max((s.num_samples for s in slices if s.num_samples is not None), default=None)
    silent = supervisors.silent_attempts(tx, job.num, 0 if job.attempt is None else job.attempt.num)
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

    `silent` are attempts with a supervisor that has ended and never reported its exit.
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


def restarts_of(
    endings: Sequence[StoredEvent],
    rows: Sequence[GenerationRow],
    restores: Sequence[RestoreRow],
    job: Job,
) -> list[RestartView]:
    """Every generation that was interrupted: why, what followed, and what it cost."""
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
            ours = [
                row.generation
                for row in rows
                if row.attempt == line.attempt and (row.up_at is None or row.up_at <= line.at)
            ]
            key = (line.attempt, max(ours, default=0))
        # The stacks of all nodes may name another rank than those of the node that saw the stall.
        if key not in failed or line.kind == _COMPARED:
            failed[key] = said.view(*key)
    return [with_cost(one, rows, restores, job) for _, one in sorted(failed.items())]


def _failure(line: StoredEvent) -> GenerationFault | None:
    """Why an event ended a generation; None where it did not."""
    if line.kind == "stop_requested":
        # Evictions and moves; a stop or pause by a user is not an interruption.
        asked = decode(StopRequested, line.data)
        if asked.goal is not StopGoal.REQUEUE:
            return None
        return GenerationFault(asked.reason.code.value, asked.reason.message, line.at)
    if line.kind in _FAILED and line.data.get("failure") is not None:
        failure = decode(_FAILED[line.kind], line.data).failure
        if failure is None or failure.collateral:
            return None
        at = min(failure.at, line.at)
        return GenerationFault(failure.cause.value, failure.message, at, failure)
    if line.kind == "node_lost":
        lost = decode(NodeLost, line.data)
        if line.state in _ATTEMPT_ENDS or lost.replacement is not None:
            return GenerationFault(lost.cause.value, lost.message, line.at)
        return None
    if line.kind == "launch_failed" and line.state in _ATTEMPT_ENDS:
        not_launched = decode(LaunchFailed, line.data)
        return GenerationFault(not_launched.cause.value, not_launched.message, line.at)
    return None


@dataclass(frozen=True, slots=True)
class GenerationFault:
    """Why a generation ended. `failure` is that of a rank; None: a lost node, or slots taken away."""

    cause: str
    message: str
    at: int
    failure: Failure | None = None

    def view(self, attempt: int, generation: int) -> RestartView:
        """The fault as the API has it, without its cost."""
        bare = RestartView(
            attempt=attempt,
            generation=generation,
            cause=self.cause,
            message=self.message,
            failed_at=at_of(self.at),
        )
        failure = self.failure
        if failure is None:
            return bare
        return bare.model_copy(
            update={
                "rank": failure.rank,
                "node_rank": failure.node_rank,
                "exit_code": failure.exit_code,
                "signal": failure.signal,
                "exception": failure.exception,
                "evidence": last_lines(failure.traceback),
            }
        )


def last_lines(text: str) -> str:
    """The end of a text, within `EVIDENCE_LINES`."""
    return "\n".join(text.strip("\n").splitlines()[-EVIDENCE_LINES:])[-_EVIDENCE_CHARS:]


def with_cost(
    one: RestartView, rows: Sequence[GenerationRow], restores: Sequence[RestoreRow], job: Job
) -> RestartView:
    """The fault with its time, what followed, and what was lost until the next completed step."""
    by_key = {(row.attempt, row.generation): row for row in rows}
    here = (one.attempt, one.generation)
    own = by_key.get(here)
    later = [by_key[key] for key in sorted(by_key) if key > here]
    failed_at = one.failed_at
    if own is not None and own.failed_at is not None:
        failed_at = at_of(own.failed_at)
    stepped = next((row for row in later if row.first_step_at is not None), None)
    next_at = None if stepped is None else at_or_none(stepped.first_step_at)
    lost_s = None if next_at is None else max(0.0, (next_at - failed_at).total_seconds())
    up_at = next((at_of(row.up_at) for row in later if row.up_at is not None), None)
    lost_steps = _lost_steps(own, stepped, restores)
    return one.model_copy(
        update={
            "failed_at": failed_at,
            "next_step_at": next_at,
            "lost_s": lost_s,
            "action": _action(here, later, job),
            "wait_s": None if up_at is None else max(0.0, (up_at - failed_at).total_seconds()),
            "lost_steps": lost_steps,
            "lost_slot_s": _lost_slot_s(lost_s, lost_steps, own, job),
        }
    )


def _action(here: tuple[int, int], later: Sequence[GenerationRow], job: Job) -> str:
    if later:
        following = later[0]
        if following.attempt == here[0]:
            return f"ranks started again in place, generation {following.generation}"
        return f"placed again, attempt {following.attempt}"
    return f"none, the job is {job.state.value}"


def _lost_steps(
    own: GenerationRow | None, stepped: GenerationRow | None, restores: Sequence[RestoreRow]
) -> int | None:
    """Steps of a generation that the next one with steps does not continue from."""
    if own is None or stepped is None:
        return None
    if own.last_step is None:
        return 0
    key = (stepped.attempt, stepped.generation)
    restored = next((one for one in restores if (one.attempt, one.generation) == key), None)
    if restored is not None:
        return max(0, own.last_step - restored.step)
    return None if stepped.first_step is None else max(0, own.last_step - stepped.first_step + 1)


def _lost_slot_s(
    lost_s: float | None, lost_steps: int | None, own: GenerationRow | None, job: Job
) -> float | None:
    if lost_s is None:
        return None
    attempt = job.attempt
    num_slots = job.policy.num_slots if attempt is None else attempt.num_slots
    return round(num_slots * (lost_s + (lost_steps or 0) * _step_s(own)), 3)


def _step_s(own: GenerationRow | None) -> float:
    """The mean time of a step; 0 where it is not known."""
    if own is None or own.first_step is None or own.last_step is None:
        return 0.0
    if own.first_step_at is None or own.last_step_at is None or own.last_step <= own.first_step:
        return 0.0
    return (own.last_step_at - own.first_step_at) / _US / (own.last_step - own.first_step)
