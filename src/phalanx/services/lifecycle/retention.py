"""One step of retention: delete expired data in small batches.

Logs and metrics expire by the retention settings; executed commands and unused code archives expire after
a week, and secret variables with their job. Jobs, their events and their checkpoints are kept.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass

from phalanx.kit.text import parse_job_label
from phalanx.launch.identity import is_held
from phalanx.schemas.home import HomeLayout
from phalanx.services.lifecycle import code
from phalanx.services.platform import Platform
from phalanx.store import jobs, outbox, telemetry
from phalanx.store.jobs import Finished
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


@dataclass(slots=True)
class RetentionProgress:
    """Ages in seconds after which logs and metrics are deleted; None: never.

    `seen_logs` and `seen_metrics` are (ended_at, number) of the last job processed: each control plane
    process visits every ended job once.
    """

    logs_s: float | None = None
    metrics_s: float | None = None
    seen_logs: tuple[int, int] = (0, 0)
    seen_metrics: tuple[int, int] = (0, 0)


def retention_step(platform: Platform, progress: RetentionProgress, now: int) -> bool:
    """Delete one batch of expired data; returns whether more may be left."""
    gone = platform.store.transact(
        lambda tx: outbox.drop_done(tx, before=now - _WEEK_US, limit=ROWS)
    )
    more = gone == ROWS
    _secrets(platform, now - _ORPHANED_US)
    _archives(platform, now - _WEEK_US)
    if progress.logs_s is not None:
        more |= _logs(platform, progress, now - round(progress.logs_s * _US))
    if progress.metrics_s is not None:
        more |= _metrics(platform, progress, now - round(progress.metrics_s * _US))
    return more


def _archives(platform: Platform, before: int) -> None:
    """Delete code archives of jobs that ended before a time. Unpacked copies stay: scripts write there."""
    idle = code.unused_since(platform.home, before / 1e6)
    if not idle:
        return
    used = platform.store.view(
        lambda tx: (
            jobs.code_in_use(tx, since=before)
            | rows.code_in_use(tx, since=before)
            | schedules.code_in_use(tx)
            | templates.code_in_use(tx)
        )
    )
    for digest in idle:
        if digest not in used:
            code.remove(platform.home, digest, before / 1e6)


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


def _logs(platform: Platform, progress: RetentionProgress, before: int) -> bool:
    gone = platform.store.transact(lambda tx: telemetry.drop_logs(tx, before=before, limit=ROWS))
    ended, more = _ended(platform, progress.seen_logs, before)
    for one in ended:
        _remove_files(platform.home, one.num)
        progress.seen_logs = (one.ended_at, one.num)
    return more or gone == ROWS


def _metrics(platform: Platform, progress: RetentionProgress, before: int) -> bool:
    ended, more = _ended(platform, progress.seen_metrics, before)
    nums = [one.num for one in ended]
    gone = platform.store.transact(lambda tx: telemetry.drop_points(tx, nums, limit=ROWS))
    if gone == ROWS:
        return True
    if ended:
        progress.seen_metrics = (ended[-1].ended_at, ended[-1].num)
    return more


def _ended(platform: Platform, seen: tuple[int, int], before: int) -> tuple[list[Finished], bool]:
    """The next jobs that ended before a time, and whether more follow."""
    page = platform.store.view(lambda tx: jobs.finished_after(tx, *seen, limit=JOBS))
    ended = [one for one in page if one.ended_at < before]
    return ended, len(ended) == JOBS


def _remove_files(home: HomeLayout, num: int) -> None:
    """Delete the supervisors' files of a job on this machine, except the code: scripts write there."""
    for folder in home.job_dir(num).glob("a*/n*"):
        if not is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)
