"""Answers of the API about deletions and what is left of them."""

from __future__ import annotations

from functools import partial

from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.jobs import (
    DataSize,
    DeletionView,
    ExpiringJobView,
    ExpiringView,
    HoldView,
    OpenDeletionView,
    PeriodsView,
    RemovedView,
    RetentionView,
    StoredLogsView,
)
from phalanx.schemas.pools.project_file import ProjectSpec
from phalanx.schemas.pools.retain import shown_period
from phalanx.services.platform import Platform
from phalanx.services.retention.abandon import abandoned_deletions
from phalanx.services.retention.deletion import Deletion
from phalanx.services.retention.log_quota import stored_output
from phalanx.services.retention.periods import periods_of, shown_periods
from phalanx.services.retention.plan import expiring
from phalanx.store import resources
from phalanx.store.database import Tx
from phalanx.store.retention import deletions, removals

_SHOWN = 100


def retention_view(platform: Platform, now: int) -> RetentionView:
    """The periods, what the next sweep deletes, and what was deleted."""
    found = expiring(platform, now)
    output = platform.store.view(partial(stored_output, platform, now=now))
    return RetentionView(
        periods=shown_periods(platform.retention.periods),
        expiring=[
            ExpiringView(kind=kind.value, items=items, num_bytes=num_bytes)
            for kind, (items, num_bytes) in found.sizes.items()
            if items or num_bytes
        ],
        expiring_jobs=[
            ExpiringJobView(
                label=job_label(one.num),
                name=one.name,
                project=one.project,
                kind=one.kind.value,
                items=one.items,
                num_bytes=one.num_bytes,
            )
            for one in found.jobs[:_SHOWN]
        ],
        held=found.held,
        logs=StoredLogsView(
            num_bytes=output.num_bytes, limit_bytes=output.limit, over_bytes=output.kept_bytes or 0
        ),
        deletions=open_deletions(platform),
        abandoned=abandoned_deletions(platform),
        open_removals=platform.store.view(removals.count),
        removed=removed(platform),
    )


def periods_view(platform: Platform, name: str) -> PeriodsView:
    """The periods of a project, and those of its own."""

    def work(tx: Tx) -> PeriodsView:
        spec = next((one for one in resources.projects.now(tx) if one.name == name), None)
        own = {} if spec is None else ProjectSpec(**spec.body).retain.chosen
        return PeriodsView(
            project=name,
            periods=shown_periods(periods_of(platform, tx, name)),
            own={kind: shown_period(period) for kind, period in own.items()},
        )

    return platform.store.view(work)


def deletion_view(found: Deletion) -> DeletionView:
    """A deletion as the API answers it."""
    return DeletionView(
        num=found.num,
        label=job_label(found.num),
        name=found.name,
        project=found.project,
        sizes=[
            DataSize(kind=kind.value, items=items, num_bytes=num_bytes)
            for kind, (items, num_bytes) in found.sizes.items()
            if items or num_bytes
        ],
        in_the_way=[
            HoldView(hold=one.hold.value, message=one.message, hint=one.hint)
            for one in found.in_the_way
        ],
    )


def open_deletions(platform: Platform) -> list[OpenDeletionView]:
    """The deleted jobs of which something is left, the oldest first."""
    found = platform.store.view(lambda tx: deletions.every_open(tx, limit=_SHOWN))
    return [
        OpenDeletionView(
            label=job_label(one.job),
            name=one.name,
            project=one.project,
            deleted_by=one.deleted_by,
            deleted_at=at_of(one.deleted_at),
            tries=one.tries,
            next_try_at=at_of(one.not_before),
            error=one.error,
        )
        for one in found
    ]


def removed(platform: Platform) -> list[RemovedView]:
    """What was deleted since the database was made."""
    found = platform.store.view(deletions.totals)
    return [
        RemovedView(kind=kind, cause=cause, items=items, num_bytes=num_bytes)
        for (kind, cause), (items, num_bytes) in sorted(found.items())
    ]
