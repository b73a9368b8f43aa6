"""What the next retention sweep deletes, without deleting anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from phalanx.core.retention.policy import DataKind
from phalanx.errors import PlatformError
from phalanx.services.lifecycle import code
from phalanx.services.platform import Platform
from phalanx.services.retention.expired_data import expired_archives
from phalanx.services.retention.expiry import due_jobs, may_expire, surplus_of
from phalanx.services.retention.log_quota import stored_output
from phalanx.services.retention.periods import RetentionScope, scopes
from phalanx.store import jobs, telemetry
from phalanx.store.database import Tx
from phalanx.store.jobs import Finished
from phalanx.store.metrics import arrivals
from phalanx.store.retention import deletions
from phalanx.store.retention.uses import uses_of

_US = 1_000_000
MOST = 1000
"""Jobs of each kind and scope that are looked at; further ones are of later sweeps."""


@dataclass(frozen=True, slots=True)
class ExpiringJob:
    """A job, surplus checkpoints or output of it, that the next sweep deletes."""

    num: int
    name: str
    project: str
    kind: DataKind  # JOBS, CHECKPOINTS or LOGS
    items: int
    num_bytes: int


@dataclass(slots=True)
class Expiring:
    """What the next sweep deletes: items and bytes by kind, and the jobs."""

    sizes: dict[DataKind, tuple[int, int]] = field(default_factory=dict)
    jobs: list[ExpiringJob] = field(default_factory=list)
    held: int = 0  # jobs that stay although their period is over, because something needs them

    def add(self, kind: DataKind, items: int, num_bytes: int) -> None:
        """Count more of one kind."""
        known = self.sizes.get(kind, (0, 0))
        self.sizes[kind] = (known[0] + items, known[1] + num_bytes)


def expiring(platform: Platform, now: int) -> Expiring:
    """What the next sweep deletes, up to a limit of jobs."""
    found = Expiring()
    every = platform.store.view(lambda tx: scopes(platform, tx))
    for scope in every:
        for kind in DataKind:
            period_s = scope.periods.of(kind)
            if kind is DataKind.LOGS:
                _output(platform, scope, now, found)
            elif period_s is not None and kind is not DataKind.CODE:
                _of_scope(platform, scope, kind, now - round(period_s * _US), found)
    for num, num_bytes in platform.store.view(partial(stored_output, platform, now=now)).victims:
        facts = platform.store.view(partial(jobs.load, num=num)).facts
        found.add(DataKind.LOGS, 1, num_bytes)
        found.jobs.append(ExpiringJob(num, facts.name, facts.project, DataKind.LOGS, 1, num_bytes))
    for digest in expired_archives(platform, every, now):
        path = code.archive_path(platform.home, digest)
        found.add(DataKind.CODE, 1, path.stat().st_size if path.exists() else 0)
    return found


def _output(platform: Platform, scope: RetentionScope, now: int, found: Expiring) -> None:
    for among, period_s in scope.outputs:
        look = partial(
            telemetry.old_logs, before=now - round(period_s * _US), among=jobs.unpinned(among)
        )
        found.add(DataKind.LOGS, *platform.store.view(look))


def _of_scope(
    platform: Platform, scope: RetentionScope, kind: DataKind, before: int, found: Expiring
) -> None:
    page = due_jobs(platform, scope, (0, 0), before, MOST)
    if kind is DataKind.METRICS:
        nums = [one.num for one in page]
        found.add(kind, len(platform.store.view(lambda tx: arrivals.with_points(tx, nums))), 0)
        return

    def look(tx: Tx) -> None:
        for one in page:
            _look_at(tx, one, kind, found)

    platform.store.view(look)


def _look_at(tx: Tx, job: Finished, kind: DataKind, found: Expiring) -> None:
    """Count one job, or its surplus checkpoints. One that cannot be read stays."""
    try:
        stored = jobs.load(tx, job.num)
        if kind is DataKind.JOBS:
            if not may_expire(tx, uses_of(tx, [job.num])[job.num], stored):
                found.held += 1
                return
            sizes = deletions.sizes(tx, job.num)
            items, num_bytes = 1, sum(size for _, size in sizes.values())
        else:
            rows = surplus_of(tx, stored)
            items, num_bytes = len(rows), sum(row.size_bytes for row in rows)
    except PlatformError:
        return
    if items:
        found.add(kind, items, num_bytes)
        found.jobs.append(ExpiringJob(job.num, job.name, job.project, kind, items, num_bytes))
