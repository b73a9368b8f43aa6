"""One step of retention for data in rows and files: delete what is older than its period, in small batches.

Output, metrics and code expire by the periods of their project; executed commands after a week, and secret
variables with their job. Jobs and checkpoints expire in `expiry`. Nothing of a pinned job expires.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.core.retention.holds import RemovalCause
from phalanx.core.retention.policy import DataKind
from phalanx.kit.text import parse_job_label
from phalanx.launch.identity import is_held
from phalanx.schemas.home import HomeLayout
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.commit import Note, commit_many
from phalanx.services.platform import Platform
from phalanx.services.retention.deletion import BY_RETENTION
from phalanx.services.retention.periods import RetentionScope, scopes, shortest
from phalanx.store import jobs, outbox, telemetry
from phalanx.store.database import Tx
from phalanx.store.jobs import JobsOf
from phalanx.store.metrics import arrivals
from phalanx.store.retention import deletions
from phalanx.store.schedules import rows as schedules
from phalanx.store.studies import rows
from phalanx.store.templates import rows as templates

# Limits per transaction (rows) and per step (jobs), so that other writers wait only briefly.
ROWS = 500
JOBS = 100
_US = 1_000_000
# A file without a job for this long belongs to a submission that failed.
_ORPHANED_US = 3600 * _US
_WEEK_US = 7 * 86_400 * _US
Cursor = tuple[int, int]
"""(ended_at, number) of the last job that was processed."""


@dataclass(slots=True)
class RetentionProgress:
    """How far the sweep is: each control plane process visits every ended job once.

    By kind, jobs and period; other ones begin anew, and all do when a job is no longer pinned.
    """

    pinned: frozenset[int] = frozenset()
    seen: dict[tuple[DataKind, JobsOf, float], Cursor] = field(default_factory=dict)


def retention_step(platform: Platform, progress: RetentionProgress, now: int) -> bool:
    """Delete one batch of expired data; returns whether more may be left."""
    gone = platform.store.transact(
        lambda tx: outbox.drop_done(tx, before=now - _WEEK_US, limit=ROWS)
    )
    more = gone == ROWS
    _secrets(platform, now - _ORPHANED_US)
    found, pinned = platform.store.view(lambda tx: (scopes(platform, tx), jobs.pinned(tx)))
    if progress.pinned - pinned:
        progress.seen.clear()
    progress.pinned = pinned
    _archives(platform, found, now)
    for scope in found:
        for among, period_s in scope.outputs:
            more |= _logs(platform, progress, among, period_s, now)
        if scope.periods.metrics is not None:
            more |= _metrics(platform, progress, scope.jobs, scope.periods.metrics, now)
    return more


def _archives(platform: Platform, found: Sequence[RetentionScope], now: int) -> None:
    """Delete code archives that no job needs any more. Unpacked copies stay: scripts write there."""
    for digest in expired_archives(platform, found, now):
        before = now - round((shortest(found, DataKind.CODE) or 0.0) * _US)
        num_bytes = code.remove(platform, digest, before / 1e6)
        if num_bytes:
            _count(platform, DataKind.CODE, 1, num_bytes)


def _count(platform: Platform, kind: DataKind, items: int, num_bytes: int) -> None:
    cause = RemovalCause.RETENTION
    platform.store.transact(lambda tx: deletions.count(tx, kind, cause, items, num_bytes))


def expired_archives(platform: Platform, found: Sequence[RetentionScope], now: int) -> list[str]:
    """Digests of code archives that nothing needs, and that were not asked for within the period."""
    least_s = shortest(found, DataKind.CODE)
    if least_s is None:
        return []
    before = now - round(least_s * _US)
    idle = code.unused_since(platform.home, before / 1e6)
    if not idle:
        return []

    def in_use(tx: Tx) -> set[str]:
        used = rows.code_in_use(tx, since=before) | schedules.code_in_use(tx)
        used |= templates.code_in_use(tx) | jobs.code_of_pinned(tx)
        for scope in found:
            period_s = scope.periods.code
            since = 0 if period_s is None else now - round(period_s * _US)
            used |= jobs.code_in_use(tx, since=since, among=scope.jobs)
        return used

    used = platform.store.view(in_use)
    return [digest for digest in idle if digest not in used]


def _secrets(platform: Platform, before: int) -> None:
    """Delete the secret variables of jobs that have ended, or that were never stored."""
    found = {
        num: path
        for path in platform.home.root.glob("jobs/j-*/secrets.json")
        if (num := parse_job_label(path.parent.name)) is not None
    }
    if not found:
        return
    ended = platform.store.view(lambda tx: jobs.ended_among(tx, list(found)))
    for num, path in found.items():
        over = ended.get(num)
        with contextlib.suppress(FileNotFoundError):
            if over or (over is None and path.stat().st_mtime_ns // 1000 < before):
                path.unlink()


def _logs(
    platform: Platform, progress: RetentionProgress, among: JobsOf, period_s: float, now: int
) -> bool:
    before = now - round(period_s * _US)

    def drop(tx: Tx) -> int:
        num_gone, num_bytes = telemetry.drop_logs(
            tx, before=before, limit=ROWS, among=jobs.unpinned(among)
        )
        deletions.count(tx, DataKind.LOGS, RemovalCause.RETENTION, num_gone, num_bytes)
        return num_gone

    gone = platform.store.transact(drop)
    key = (DataKind.LOGS, among, period_s)
    ended, more = _ended(platform, among, progress.seen.get(key, (0, 0)), before)
    told = [num for num, _ in ended if remove_files(platform.home, num)]
    _tell(platform, told, DataKind.LOGS, now)
    if ended:
        progress.seen[key] = ended[-1][::-1]
    return more or gone == ROWS


def _metrics(
    platform: Platform, progress: RetentionProgress, among: JobsOf, period_s: float, now: int
) -> bool:
    before = now - round(period_s * _US)
    key = (DataKind.METRICS, among, period_s)
    ended, more = _ended(platform, among, progress.seen.get(key, (0, 0)), before)
    nums = [num for num, _ in ended]
    with_points = platform.store.view(lambda tx: arrivals.with_points(tx, nums))

    def drop(tx: Tx) -> int:
        num_gone = arrivals.drop_points(tx, nums, limit=ROWS)
        deletions.count(tx, DataKind.METRICS, RemovalCause.RETENTION, num_gone, 0)
        return num_gone

    if platform.store.transact(drop) == ROWS:
        return True
    _tell(platform, with_points, DataKind.METRICS, now)
    if ended:
        progress.seen[key] = ended[-1][::-1]
    return more


def _tell(platform: Platform, nums: Sequence[int], kind: DataKind, now: int) -> None:
    """Add an event to jobs of which data expired."""
    note = Note("expired", 0, 0, {"what": kind.value})
    if nums:
        platform.store.transact(
            lambda tx: commit_many(tx, [(num, [note]) for num in nums], now, BY_RETENTION)
        )


def _ended(
    platform: Platform, among: JobsOf, seen: Cursor, before: int
) -> tuple[list[Cursor], bool]:
    """(number, end) of the next of some jobs that ended before a time, and whether more follow.

    Pinned ones are left out.
    """

    def work(tx: Tx) -> list[Cursor]:
        page = jobs.ended_before(tx, before, among, seen=seen, limit=JOBS)
        return [(one.num, one.ended_at) for one in page]

    page = platform.store.view(work)
    return page, len(page) == JOBS


def remove_files(home: HomeLayout, num: int) -> bool:
    """Delete the supervisors' files of a job on this machine; returns whether there were any.

    The code stays: scripts write there.
    """
    found = False
    for folder in home.job_dir(num).glob("a*/n*"):
        if not is_held(folder):
            found = True
            shutil.rmtree(folder, ignore_errors=True)
    return found
