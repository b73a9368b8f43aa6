"""Delete a job that has ended: decide whether it may go, then delete its row.

That is one transaction. What is left of the job afterwards is deleted by `work`, also after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.retention.holds import HoldReason, JobUse, RemovalCause, holds
from phalanx.core.retention.policy import DataKind
from phalanx.errors import Conflict
from phalanx.kit.text import job_label
from phalanx.services.platform import Platform
from phalanx.services.retention.places import places_of
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.retention import deletions
from phalanx.store.retention.deletions import DeletedJob
from phalanx.store.retention.uses import uses_of
from phalanx.store.studies import checkpoint_pins
from phalanx.store.tenancy import audit

BY_RETENTION = "retention"
"""What deletes jobs at the end of their retention period."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion deletes, or would delete; `in_the_way` says why it deletes nothing."""

    num: int
    name: str
    project: str
    sizes: dict[DataKind, tuple[int, int]]  # items and bytes by kind
    in_the_way: tuple[HoldReason, ...] = ()


def preview(platform: Platform, num: int) -> Deletion:
    """What the deletion of a job would delete. Raises NotFound."""

    def work(tx: Tx) -> Deletion:
        stored = jobs.load(tx, num)
        return _deletion(tx, stored, holds(_use(tx, num)))

    return platform.store.view(work)


def delete(platform: Platform, num: int, now: int, actor: str) -> Deletion:
    """Delete a job at the request of a user. Raises NotFound, and Conflict with what is in the way."""

    def work(tx: Tx) -> Deletion:
        stored = jobs.load(tx, num)
        found = holds(_use(tx, num))
        if found:
            raise Conflict(found[0].message, found[0].hint)
        return delete_in(platform, tx, stored, now, actor, RemovalCause.REQUEST)

    return platform.store.transact(work)


def delete_in(
    platform: Platform, tx: Tx, stored: StoredJob, now: int, actor: str, cause: RemovalCause
) -> Deletion:
    """Delete a job, of which the caller has locked the row and knows that nothing needs it.

    Raises Conflict where one of its checkpoints was pinned in this moment.
    """
    num, facts = stored.job.num, stored.facts
    made = _deletion(tx, stored, ())
    paths = deletions.checkpoint_paths(tx, num)
    if len(checkpoint_pins.mark_removed(tx, num, paths)) < len(paths):
        raise Conflict(f"a checkpoint of {job_label(num)} was pinned just now", "try again")
    audit.describe(tx, f"job {job_label(num)}", _audited(stored), None)
    places = places_of(platform, stored)
    row = DeletedJob(
        job=num,
        name=facts.name,
        project=facts.project,
        owner=facts.owner,
        deleted_at=now,
        deleted_by=actor,
        cause=cause.value,
        remains=places.to_json(),
        not_before=now,
    )
    deletions.begin(tx, row)
    deletions.count(tx, DataKind.JOBS, cause, 1, 0)
    for kind, (items, num_bytes) in made.sizes.items():
        # Bytes of checkpoints count when their files are deleted.
        if kind is not DataKind.CHECKPOINTS:
            deletions.count(tx, kind, cause, items, num_bytes)
    return made


def _use(tx: Tx, num: int) -> JobUse:
    return uses_of(tx, [num])[num]


def _deletion(tx: Tx, stored: StoredJob, found: tuple[HoldReason, ...]) -> Deletion:
    num = stored.job.num
    sizes = deletions.sizes(tx, num)
    return Deletion(num, stored.facts.name, stored.facts.project, sizes, found)


def _audited(stored: StoredJob) -> dict[str, object]:
    """What the audit log keeps of a deleted job."""
    job, facts = stored.job, stored.facts
    return {
        "state": job.state.value,
        "project": facts.project,
        "owner": facts.owner,
        "name": facts.name,
        "labels": facts.labels,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "code": facts.code_digest,
    }
