"""Answers of the API about deletions and what is left of them."""

from __future__ import annotations

from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.jobs import (
    DataSize,
    DeletionView,
    HoldView,
    OpenDeletionView,
    RemovedView,
)
from phalanx.services.platform import Platform
from phalanx.services.retention.deletion import Deletion
from phalanx.store.retention import deletions

_SHOWN = 100


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
