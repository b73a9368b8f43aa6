"""One step of retention: what is old enough goes, a little at a time.

Output and metrics go by their age or that of their job; commands that were executed and archives of code,
which nobody looks at again, after a week. Jobs, their events and their checkpoints stay.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from phalanx.launch.identity import is_held
from phalanx.schemas.home import HomeLayout
from phalanx.services.lifecycle import code
from phalanx.services.platform import Platform
from phalanx.store import jobs, outbox, telemetry
from phalanx.store.jobs import Finished

# Rows that one transaction deletes, and jobs that one step looks at: nobody shall wait for long.
ROWS = 500
JOBS = 100
_WEEK_US = 7 * 86_400 * 1_000_000


@dataclass(slots=True)
class Sweep:
    """Ages in microseconds after which output and metrics go; None: never.

    `seen_logs` and `seen_metrics` are the ends, with the numbers, of the jobs that were swept last: every
    job's turn comes once in the life of a control plane.
    """

    logs_us: int | None = None
    metrics_us: int | None = None
    seen_logs: tuple[int, int] = (0, 0)
    seen_metrics: tuple[int, int] = (0, 0)


def retention_step(platform: Platform, sweep: Sweep, now: int) -> bool:
    """Let some of it go; whether more may be waiting."""
    gone = platform.store.transact(
        lambda tx: outbox.drop_done(tx, before=now - _WEEK_US, limit=ROWS)
    )
    more = gone == ROWS
    _archives(platform, now - _WEEK_US)
    if sweep.logs_us is not None:
        more |= _logs(platform, sweep, now - sweep.logs_us)
    if sweep.metrics_us is not None:
        more |= _metrics(platform, sweep, now - sweep.metrics_us)
    return more


def _archives(platform: Platform, before: int) -> None:
    """Code of jobs that were all over by then. The attempts' own copies stay: scripts write there."""
    idle = code.unused_since(platform.home, before / 1e6)
    if not idle:
        return
    used = platform.store.view(lambda tx: jobs.code_in_use(tx, since=before))
    for digest in idle:
        if digest not in used:
            code.remove(platform.home, digest, before / 1e6)


def _logs(platform: Platform, sweep: Sweep, before: int) -> bool:
    gone = platform.store.transact(lambda tx: telemetry.drop_logs(tx, before=before, limit=ROWS))
    ended, more = _ended(platform, sweep.seen_logs, before)
    for one in ended:
        _remove_files(platform.home, one.num)
        sweep.seen_logs = (one.ended_at, one.num)
    return more or gone == ROWS


def _metrics(platform: Platform, sweep: Sweep, before: int) -> bool:
    ended, more = _ended(platform, sweep.seen_metrics, before)
    nums = [one.num for one in ended]
    gone = platform.store.transact(lambda tx: telemetry.drop_points(tx, nums, limit=ROWS))
    if gone == ROWS:
        return True
    if ended:
        sweep.seen_metrics = (ended[-1].ended_at, ended[-1].num)
    return more


def _ended(platform: Platform, seen: tuple[int, int], before: int) -> tuple[list[Finished], bool]:
    """The next jobs that ended before a time, and whether there are more."""
    page = platform.store.view(lambda tx: jobs.finished_after(tx, *seen, limit=JOBS))
    ended = [one for one in page if one.ended_at < before]
    return ended, len(ended) == JOBS


def _remove_files(home: HomeLayout, num: int) -> None:
    """What supervisors kept of a job on this machine. Its copies of the code stay: scripts write there."""
    for folder in home.job_dir(num).glob("a*/n*"):
        if not is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)
