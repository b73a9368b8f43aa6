"""Give up the copies of a deleted job in a store that does not come back.

A deletion is tried until it succeeds (decision 0160), for ever where a bucket or a mount is gone for good.
Everything else of the job is deleted all the same, and its row says what was left, and where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phalanx.errors import Conflict
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.jobs import AbandonedDeletionView
from phalanx.services.platform import Platform
from phalanx.services.retention.places import JobPlaces
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.retention import deletions
from phalanx.store.retention.deletions import DeletedJob
from phalanx.store.tenancy import audit

_SHOWN = 100
_NAMED = 1000


def abandon(platform: Platform, num: int, now: int, actor: str) -> AbandonedDeletionView:
    """Complete the deletion of a job without its copies; may be repeated.

    Raises NotFound, and Conflict for a job that is not deleted, for a deletion that is complete, and for
    one that no store holds up.
    """

    def work(tx: Tx) -> AbandonedDeletionView:
        one = deletions.find(tx, num, lock=True)
        if one is None:
            jobs.load(tx, num)
            said = f"{job_label(num)} is not deleted: there is nothing to give up"
            raise Conflict(said, f"delete it first: phalanx delete {job_label(num)}")
        if one.abandoned_by is not None:
            return _view(one, left_of(tx, one))
        _check(one)
        left = left_of(tx, one)
        deletions.abandon(tx, num, actor, now)
        before = {"project": one.project, "owner": one.owner, "name": one.name}
        after = {**before, "abandoned_by": actor, "left": left, "error": one.error}
        audit.describe(tx, f"job {job_label(num)}", before, after)
        return _view(replace(one, abandoned_by=actor), left)

    return platform.store.transact(work)


def _check(one: DeletedJob) -> None:
    """Raise Conflict where a deletion is not one that a store holds up."""
    label = job_label(one.job)
    if one.done_at is not None:
        raise Conflict(f"everything of {label} is deleted", "there is nothing to give up")
    if one.error is None:
        said = f"the deletion of {label} has not failed"
        raise Conflict(said, "wait for it; `phalanx admin retention` shows deletions that are open")
    if not JobPlaces.from_json(one.remains or {}).stores:
        said = f"{label} has no copies in a store: only these can be given up"
        raise Conflict(said, f"what holds up its deletion: {one.error}")


def left_of(tx: Tx, one: DeletedJob) -> dict[str, Any]:
    """What is left of a job when its copies are given up: the stores, and the checkpoints there."""
    if one.done_at is not None:
        return dict(one.remains or {})
    names, num_bytes = deletions.copies(tx, one.job)
    stores = JobPlaces.from_json(one.remains or {}).stores
    return {
        "stores": list(stores),
        "checkpoints": names[:_NAMED],
        "num_checkpoints": len(names),
        "num_bytes": num_bytes,
    }


def abandoned_deletions(platform: Platform) -> list[AbandonedDeletionView]:
    """The deletions with copies that were given up, the newest first."""

    def work(tx: Tx) -> list[AbandonedDeletionView]:
        found = deletions.every_abandoned(tx, limit=_SHOWN)
        return [_view(one, left_of(tx, one)) for one in found]

    return platform.store.view(work)


def _view(one: DeletedJob, left: Mapping[str, Any]) -> AbandonedDeletionView:
    return AbandonedDeletionView(
        num=one.job,
        label=job_label(one.job),
        name=one.name,
        project=one.project,
        deleted_by=one.deleted_by,
        deleted_at=at_of(one.deleted_at),
        abandoned_by=one.abandoned_by or "",
        stores=list(left.get("stores") or ()),
        checkpoints=list(left.get("checkpoints") or ()),
        num_checkpoints=int(left.get("num_checkpoints") or 0),
        num_bytes=int(left.get("num_bytes") or 0),
        error=one.error,
    )
