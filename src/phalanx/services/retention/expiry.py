"""One step of retention for jobs and checkpoints: begin what a retention period demands.

Only jobs that have ended are looked at, a batch in each step, and each in a transaction of its own that
asks again what needs it. Files are deleted by `work`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan

from phalanx.core.retention.holds import Hold, JobUse, RemovalCause, holds
from phalanx.core.retention.policy import DataKind, surplus
from phalanx.errors import Conflict, LaunchError, NotFound, SpecInvalid
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.platform import Platform
from phalanx.services.retention.deletion import BY_RETENTION, delete_in
from phalanx.services.retention.periods import RetentionScope, scopes
from phalanx.store import jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.jobs import Finished, StoredJob
from phalanx.store.lineage import CheckpointRow
from phalanx.store.retention import removals
from phalanx.store.retention.uses import fork_paths, uses_of
from phalanx.store.storage import objects
from phalanx.store.studies import checkpoint_pins
from phalanx.store.studies import rows as studies

_LOG = logging.getLogger(__name__)
JOBS = 50
"""Jobs of one step of each kind and scope."""
_US = 1_000_000
_KINDS = (DataKind.CHECKPOINTS, DataKind.JOBS)
Cursor = tuple[int, int]
"""(ended_at, number) of the last job that was looked at."""


@dataclass(slots=True)
class ExpiryProgress:
    """How far the present sweep is, by kind and scope. A sweep that is through begins again."""

    seen: dict[tuple[DataKind, RetentionScope], Cursor] = field(default_factory=dict)


def expiry_step(platform: Platform, progress: ExpiryProgress, now: int) -> bool:
    """Look at one batch of each kind and scope; returns whether more is left of this sweep."""
    more = False
    for scope in platform.store.view(lambda tx: scopes(platform, tx)):
        for kind in _KINDS:
            period_s = scope.periods.of(kind)
            if period_s is not None:
                before = now - round(period_s * _US)
                more |= _batch(platform, progress, scope, kind, before, now)
    return more


def _batch(
    platform: Platform,
    progress: ExpiryProgress,
    scope: RetentionScope,
    kind: DataKind,
    before: int,
    now: int,
) -> bool:
    key = (kind, scope)
    page = due_jobs(platform, scope, progress.seen.get(key, (0, 0)), before)
    expire = _expire_job if kind is DataKind.JOBS else _expire_checkpoints
    wanted = platform.store.view(lambda tx: _with_work(tx, [one.num for one in page], kind))
    for one in page:
        platform.may_act()
        if one.num in wanted:
            expire(platform, one.num, now)
        progress.seen[key] = (one.ended_at, one.num)
    if len(page) < JOBS:
        progress.seen.pop(key, None)
        return False
    return True


def _with_work(tx: Tx, nums: Sequence[int], kind: DataKind) -> set[int]:
    """Those of these jobs that may expire, or may have surplus checkpoints: the others cost no write."""
    if kind is DataKind.CHECKPOINTS:
        return lineage.with_several_checkpoints(tx, nums)
    return {num for num, use in uses_of(tx, nums).items() if not holds(use)}


def due_jobs(
    platform: Platform, scope: RetentionScope, seen: Cursor, before: int, limit: int = JOBS
) -> list[Finished]:
    """The next jobs of a scope that ended before a time."""

    return platform.store.view(
        lambda tx: jobs.ended_before(tx, before, scope.jobs, seen=seen, limit=limit)
    )


def _expire_job(platform: Platform, num: int, now: int) -> None:
    """Delete a job unless something needs it now."""

    def work(tx: Tx) -> None:
        stored = jobs.load(tx, num)
        use = uses_of(tx, [num])[num]
        if not may_expire(tx, use, stored):
            return
        delete_in(platform, tx, stored, now, BY_RETENTION, RemovalCause.RETENTION)

    _unless_gone(lambda: platform.store.transact(work))


def may_expire(tx: Tx, use: JobUse, stored: StoredJob) -> bool:
    """Whether retention may delete a job: not what a request may not, nor the best trial of a study."""
    return not holds(use) and not _is_best_trial(tx, stored)


def _is_best_trial(tx: Tx, stored: StoredJob) -> bool:
    facts = stored.facts
    if facts.study is None or facts.trial is None:
        return False
    return studies.best_trial_of(tx, facts.study) == facts.trial


def _expire_checkpoints(platform: Platform, num: int, now: int) -> None:
    """Mark the checkpoints of a job that its retention period does not keep, and queue their files."""

    def work(tx: Tx) -> None:
        stored = jobs.load(tx, num)
        doomed = surplus_of(tx, stored)
        if not doomed:
            return
        sizes = {row.path: row.size_bytes for row in doomed}
        gone = checkpoint_pins.mark_removed(tx, num, list(sizes))
        if not gone:
            return
        objects.end(tx, num, gone, now)
        removals.add(tx, num, [(path, sizes[path]) for path in gone], now)
        told = {
            "what": DataKind.CHECKPOINTS.value,
            "items": len(gone),
            "bytes": sum(sizes[path] for path in gone),
        }
        commit_events(tx, num, [Note("expired", 0, 0, told)], now, BY_RETENTION, known=stored)

    _unless_gone(lambda: platform.store.transact(work))


def surplus_of(tx: Tx, stored: StoredJob) -> Sequence[CheckpointRow]:
    """The valid checkpoints of a job that has ended which its retention period does not keep."""
    num = stored.job.num
    use = uses_of(tx, [num]).get(num)
    in_the_way = {one.hold for one in holds(use)} if use is not None else {Hold.LIVE}
    if in_the_way & {Hold.LIVE, Hold.PINNED, Hold.STUDY, Hold.LEAVING}:
        return ()
    rows = lineage.valid_checkpoints_of(tx, num)
    kept = checkpoint_pins.pinned(tx, num) | fork_paths(tx, num) | _named_by_trial(tx, stored)
    kept |= _best(stored, rows)
    gone = set(surplus([row.path for row in rows], stored.job.progress.checkpoint_path, kept))
    return [row for row in rows if row.path in gone]


def _best(stored: StoredJob, rows: Sequence[CheckpointRow]) -> set[str]:
    """The checkpoints that the spec keeps as the best ones."""
    best = contract_of(stored.facts).roles[0].checkpoint.keep.best
    if best is None:
        return set()
    sign = -1.0 if best.mode == "min" else 1.0
    known = [row for row in rows if isfinite(row.metrics.get(best.metric, nan))]
    ordered = sorted(known, key=lambda row: sign * row.metrics[best.metric], reverse=True)
    return {row.path for row in ordered[: best.count]}


def _named_by_trial(tx: Tx, stored: StoredJob) -> set[str]:
    facts = stored.facts
    if facts.study is None or facts.trial is None:
        return set()
    try:
        found = studies.trial(tx, facts.study, facts.trial).checkpoint
    except NotFound:
        return set()
    return set() if found is None else {found}


def _unless_gone(work: Callable[[], None]) -> None:
    """Do something to a job; one that was deleted or pinned meanwhile is passed over."""
    try:
        work()
    except (NotFound, Conflict, SpecInvalid, LaunchError) as error:
        _LOG.warning("retention leaves a job alone: %s", error)
