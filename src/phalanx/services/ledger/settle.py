"""Write the rows of the ledger as waits and attempts end, and compute those of what has not ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.core.cost.ledger import (
    Account,
    AccountRow,
    AttemptHistory,
    GenerationTimes,
    Interruption,
    Save,
    queue_rows,
    rows_of,
    slices_of,
)
from phalanx.core.cost.price_table import Held, PriceTable
from phalanx.core.jobs.model import Attempt, Job, JobState, StopGoal
from phalanx.core.probes import PROBE_PROJECT
from phalanx.core.reasons import ReasonCode
from phalanx.core.slo.objectives import class_name
from phalanx.store.cost import prices, rows
from phalanx.store.cost.rows import CostOwner, CostRow
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts, StoredJob

_US = 1_000_000
_MADE_ROOM = frozenset(
    {ReasonCode.PREEMPTED, ReasonCode.RESIZED, ReasonCode.MOVED, ReasonCode.NODE_DRAINED}
)


def settle(tx: Tx, changed: Sequence[tuple[StoredJob, Job]], now: int) -> None:
    """Write the rows of waits and attempts that ended as these jobs changed, each (before, after)."""
    found: list[CostRow] = []
    over = [before for before, job in changed if before.job.attempt and job.attempt is None]
    for before, job in changed:
        if before.job.state is JobState.QUEUED and job.state is not JobState.QUEUED:
            found += waiting_rows(before, now)
    rows.add_many(tx, found)
    if over:
        # Before prices are read: a price that is set meanwhile waits, or is seen (docs/decisions/0096).
        rows.lock(tx)
        settled = attempt_rows(tx, over, prices.table(tx), now, ended=True)
        rows.add_many(tx, [row for one in settled.values() for row in one])
        for before in over:
            _count_slot_time(tx, before, settled.get(before.job.num, ()))


def _count_slot_time(tx: Tx, stored: StoredJob, ended: Sequence[CostRow]) -> None:
    """Add what an attempt held to the totals of the class of its job; probes are of no class."""
    if stored.facts.project == PROBE_PROJECT:
        return
    productive = sum(
        amount
        for one in ended
        for account, amount in one.row.amounts
        if account is Account.PRODUCTIVE
    )
    held, named = sum(one.row.total for one in ended), class_name(stored.facts.spec)
    for use, amount in (("productive", productive), ("other", held - productive)):
        tx.touched.totals.add("phalanx_class_slot_seconds", named, use, by=amount / _US)


def live_rows(tx: Tx, live: Sequence[StoredJob], now: int) -> dict[int, list[CostRow]]:
    """What jobs that wait or hold slots have used since their last rows, by job."""
    found = {
        one.job.num: waiting_rows(one, now) for one in live if one.job.state is JobState.QUEUED
    }
    holding = [one for one in live if one.job.attempt is not None]
    if not holding:
        return found
    return found | attempt_rows(tx, holding, prices.table(tx), now, ended=False)


def waiting_rows(stored: StoredJob, now: int) -> list[CostRow]:
    """The rows of the wait of a queued job."""
    job = stored.job
    since = job.submitted_at if job.queued_at is None else job.queued_at
    waited = queue_rows(since, now, job.policy.num_slots)
    owner = _owner(job.num, stored.facts)
    return [CostRow(owner, job.attempts + 1, "", None, one, 0) for one in waited]


def attempt_rows(
    tx: Tx, held: Sequence[StoredJob], table: PriceTable, now: int, *, ended: bool
) -> dict[int, list[CostRow]]:
    """The rows of the live attempts of some jobs up to `now`, by job; `ended`: they end now."""
    nums = [one.job.num for one in held]
    if not nums:
        return {}
    times = rows.generations_of(tx, nums)
    again = [one.job.num for one in held if one.job.attempts > 1]
    ends = rows.last_ends(tx, again) if again else {}
    found: dict[int, list[CostRow]] = {}
    saves = _saves(tx, held, times)
    for stored in held:
        job, attempt = stored.job, stored.job.attempt
        if attempt is None or attempt.placed_at is None:
            continue
        known = times.get(job.num, [])
        kept = saves.get(job.num, ())
        history = _history(stored, known, kept, ends.get(job.num), now if ended else None)
        parts = rows_of(slices_of(history, now), attempt.num_slots)
        holds = held_by(stored, attempt)
        found[job.num] = [
            _row(
                stored,
                attempt,
                history.ended_by,
                one,
                table.nano_usd(holds, one.from_at, one.to_at),
            )
            for one in parts
        ]
    return found


def held_by(stored: StoredJob, attempt: Attempt) -> Held:
    """What an attempt holds, as prices see it: the CPU cores are those that the job asked for."""
    others = stored.job.policy.roles
    main = len(attempt.placement.shares) - sum(one.nodes for one in others)
    cpus = max(main, 0) * stored.facts.cpus_per_node
    cpus += sum(one.nodes * one.cpus_per_node for one in others)
    return Held(attempt.placement.pool, attempt.offers, cpus)


def _row(
    stored: StoredJob,
    attempt: Attempt,
    ended_by: Interruption | None,
    one: AccountRow,
    nano_usd: int,
) -> CostRow:
    owner, pool = _owner(stored.job.num, stored.facts), attempt.placement.pool
    kinds = {offer.slot_type for offer in attempt.offers}
    kind = next(iter(kinds)) if len(kinds) == 1 else ""
    return CostRow(owner, attempt.num, pool, ended_by, one, nano_usd, kind)


def _owner(num: int, facts: JobFacts) -> CostOwner:
    return CostOwner(num, facts.project, facts.owner, facts.study, facts.trial)


def _history(
    stored: StoredJob,
    known: Sequence[Mapping[Any, Any]],
    saves: Sequence[Save],
    before: tuple[int, str | None] | None,
    ended_at: int | None,
) -> AttemptHistory:
    job, attempt = stored.job, stored.job.attempt
    assert attempt is not None and attempt.placed_at is not None
    ours = [row for row in known if row["attempt"] == attempt.num]
    first = job.progress.beginning
    earlier = [
        row["last_step"]
        for row in known
        if first < row["attempt"] < attempt.num and row["last_step"] is not None
    ]
    after = before[1] if before is not None and before[0] == attempt.num - 1 else None
    return AttemptHistory(
        placed_at=attempt.placed_at,
        ended_at=ended_at,
        after=None if after is None else Interruption(after),
        ended_by=_ended_by(job, attempt),
        high_step=max(earlier, default=None),
        generations=tuple(_times(row) for row in ours),
        saves=tuple(saves),
    )


def _times(row: Mapping[Any, Any]) -> GenerationTimes:
    return GenerationTimes(
        number=row["generation"],
        up_at=row["up_at"],
        first_step_at=row["first_step_at"],
        last_step_at=row["last_step_at"],
        first_step=row["first_step"],
        last_step=row["last_step"],
        ended_at=row["ended_at"],
        failed=row["failed_at"] is not None,
    )


def _saves(
    tx: Tx, held: Sequence[StoredJob], times: Mapping[int, Sequence[Mapping[Any, Any]]]
) -> dict[int, list[Save]]:
    """The checkpoints of the live attempts, by job, where they matter.

    Training does not wait for those that are saved in the background.
    """
    wanted, background = dict[int, int](), dict[int, bool]()
    for stored in held:
        num, attempt = stored.job.num, stored.job.attempt
        ours = [row for row in times.get(num, ()) if attempt and row["attempt"] == attempt.num]
        saving = stored.facts.spec.get("checkpoint") or {}
        background[num] = bool(saving.get("async", True))
        steps = all(row["first_step_at"] is not None for row in ours)
        if attempt is not None and ours and not (background[num] and steps):
            wanted[num] = attempt.num
    return {
        num: [
            Save(number, at, 0 if background[num] else round((took_s or 0.0) * _US))
            for number, at, took_s in found
        ]
        for num, found in rows.saves_of(tx, wanted).items()
    }


def _ended_by(job: Job, attempt: Attempt) -> Interruption | None:
    """What ends an attempt that is not complete; None: its owner, or nothing."""
    if attempt.finished:
        return None
    if job.goal is StopGoal.REQUEUE and job.reason.code in _MADE_ROOM:
        return Interruption.PREEMPTION
    if job.reason.code is ReasonCode.MAX_DURATION:
        return None
    return Interruption.FAILURE if attempt.failures else None
