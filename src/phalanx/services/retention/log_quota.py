"""The quota of stored output: above it, the output of the jobs that ended first is deleted.

Output of jobs that have not ended, of pinned jobs, and of failed jobs during the period `failed_logs`
stays, also where all of it together is above the quota.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from phalanx.core.retention.holds import RemovalCause
from phalanx.core.retention.policy import DataKind
from phalanx.errors import NotFound
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.platform import Platform
from phalanx.services.retention.deletion import BY_RETENTION
from phalanx.services.retention.expired_data import remove_files
from phalanx.services.retention.periods import RetentionScope, scopes
from phalanx.store import jobs, telemetry
from phalanx.store.database import Tx
from phalanx.store.retention import deletions
from phalanx.store.retention.marks import MarkKind, of_job

_US = 1_000_000
JOBS = 100
"""Jobs that one step takes output from."""


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """Bytes of stored output of all jobs, and what the quota may delete of it, the first victims first."""

    num_bytes: int
    limit: int | None  # None: there is no quota
    victims: tuple[tuple[int, int], ...]  # (number, bytes) of the jobs that are to go now
    kept_bytes: int | None  # above the quota, with no victim left; None: not looked at


def log_quota_step(platform: Platform, now: int) -> bool:
    """Delete the output of the first ended jobs above the quota; returns whether more may be left."""
    if platform.retention.log_bytes is None:
        return False
    found = platform.store.view(partial(stored_output, platform, now=now))
    for num, _ in found.victims:
        platform.may_act()
        if platform.store.transact(partial(_drop, num=num, now=now)):
            remove_files(platform.home, num)
    return len(found.victims) == JOBS


def stored_output(platform: Platform, tx: Tx, now: int) -> StoredOutput:
    """How much output is stored, and of which jobs the next step deletes it."""
    num_bytes, limit = telemetry.stored_bytes(tx), platform.retention.log_bytes
    if limit is None or num_bytes <= limit:
        return StoredOutput(num_bytes, limit, (), None)
    victims, left = [], num_bytes
    for _, num, size in sorted(_candidates(platform, tx, now))[:JOBS]:
        if left <= limit:
            break
        victims.append((num, size))
        left -= size
    done = len(victims) < JOBS
    return StoredOutput(num_bytes, limit, tuple(victims), max(0, left - limit) if done else None)


def _candidates(platform: Platform, tx: Tx, now: int) -> Iterator[tuple[int, int, int]]:
    """(end, number, bytes) of the first jobs of each scope that are not held."""
    for scope in scopes(platform, tx):
        yield from jobs.ended_with_output(
            tx, scope.jobs, failed_before=_failed_before(scope, now), limit=JOBS
        )


def _failed_before(scope: RetentionScope, now: int) -> int | None:
    period_s = scope.periods.failed_logs
    return None if period_s is None else now - round(period_s * _US)


def _drop(tx: Tx, num: int, now: int) -> bool:
    """Delete the output of a job, with an event; False where the job is gone or was pinned meanwhile."""
    try:
        stored = jobs.load(tx, num)
    except NotFound:
        return False
    if MarkKind.PINNED in of_job(tx, num):
        return False
    items, num_bytes = telemetry.drop_for_quota(tx, num, now)
    cause = RemovalCause.QUOTA
    told = {"what": DataKind.LOGS.value, "cause": cause.value, "bytes": num_bytes}
    deletions.count(tx, DataKind.LOGS, cause, items, num_bytes)
    commit_events(tx, num, [Note("expired", 0, 0, told)], now, BY_RETENTION, known=stored)
    return True
