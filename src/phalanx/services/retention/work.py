"""The step that completes deletions: files, copies in object stores, and rows in batches.

Every part may be repeated, so a process that is killed at any point leaves what the next step completes. A
part that fails is tried again later, with growing waits: a store may be away for days.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from phalanx.core.retention.holds import RemovalCause
from phalanx.core.retention.policy import DataKind
from phalanx.errors import LeaseLost, NotFound, PlatformError, StoreError
from phalanx.kit.clock import backoff_s
from phalanx.kit.text import job_label, shorten
from phalanx.services.lifecycle import code
from phalanx.services.platform import Platform
from phalanx.services.retention import files
from phalanx.services.retention.abandon import left_of
from phalanx.services.retention.places import JobPlaces, places_of
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.logs import packs
from phalanx.store.retention import deletions, removals
from phalanx.store.retention.deletions import DeletedJob
from phalanx.store.retention.removals import CheckpointRemoval
from phalanx.store.schedules import rows as schedules
from phalanx.store.studies import rows as studies
from phalanx.store.templates import rows as templates

_LOG = logging.getLogger(__name__)
ROWS = 500
"""Rows that one transaction deletes, so that other writers wait only briefly."""
_JOBS = 20
_US = 1_000_000
_CODE_AGE_US = 3600 * _US
_MAX_WAIT_S = 3600.0


def deletions_step(platform: Platform, now: int) -> int | None:
    """Go on with due deletions; returns when the next try is due, or None when nothing is left."""
    for one in platform.store.view(lambda tx: deletions.due(tx, now, limit=_JOBS)):
        platform.may_act()
        _tried(platform, one, now)
    expired = platform.store.view(lambda tx: removals.due(tx, now, limit=ROWS))
    for num, doomed in expired.items():
        platform.may_act()
        _remove_checkpoints(platform, num, doomed, now)
    times = platform.store.view(lambda tx: (deletions.next_at(tx), removals.next_at(tx)))
    return min((at for at in times if at is not None), default=None)


def _remove_checkpoints(
    platform: Platform, num: int, doomed: Sequence[CheckpointRemoval], now: int
) -> None:
    """Delete the files of checkpoints that expired, here and in the store of their job."""
    names, paths = [one.name for one in doomed], [one.path for one in doomed]
    try:
        stored = platform.store.view(lambda tx: jobs.load(tx, num))
        places, project = places_of(platform, stored), stored.facts.project
        near = files.remove_near_some(platform, project, num, places, names)
        far = files.remove_copies(platform, project, num, places, names, only=names)
    except (LeaseLost, StoreError):
        raise
    except NotFound:
        return  # the job was deleted meanwhile, and its queue with it
    except (PlatformError, OSError) as error:
        said = shorten(str(error), 500)
        _LOG.warning(
            "checkpoints of %s are not deleted yet: %s",
            job_label(num),
            said,
            extra={"event": "checkpoints_not_deleted", "job": num},
        )
        tries = max(one.tries for one in doomed)

        def put(tx: Tx, tries: int, later: int) -> None:
            removals.retry(tx, num, paths, tries=tries, not_before=later, error=said)

        put_off(platform, tries, now, put)
        return

    def done(tx: Tx) -> None:
        removals.finish(tx, num, paths)
        both = near.plus(far)
        cause = RemovalCause.RETENTION
        deletions.count(tx, DataKind.CHECKPOINTS, cause, both.count, both.num_bytes)

    platform.store.transact(done)


def _tried(platform: Platform, one: DeletedJob, now: int) -> None:
    try:
        _complete(platform, one, now)
    except (LeaseLost, StoreError):
        raise
    except (PlatformError, OSError) as error:
        said = shorten(str(error), 500)
        _LOG.warning(
            "%s is not deleted completely yet: %s",
            job_label(one.job),
            said,
            extra={"event": "job_not_deleted", "job": one.job},
        )
        put_off(
            platform,
            one.tries,
            now,
            lambda tx, tries, later: deletions.retry(
                tx, one.job, tries=tries, not_before=later, error=said
            ),
        )


def put_off(
    platform: Platform, tries: int, now: int, store: Callable[[Tx, int, int], None]
) -> None:
    """Store a failed try and the time of the next one: `store` gets the number of tries and the time."""
    wait_s = backoff_s(tries + 1, first_s=5.0, max_s=_MAX_WAIT_S)
    later = now + round(wait_s * _US)
    platform.store.transact(lambda tx: store(tx, tries + 1, later))


def _complete(platform: Platform, one: DeletedJob, now: int) -> None:
    """Delete everything that is left of a job. Raises what its files and stores raise."""
    places = JobPlaces.from_json(one.remains or {})
    cause = RemovalCause(one.cause)
    files.remove_job_folder(platform, one.job)
    near = files.remove_near(platform, one.project, one.job, places.uid)
    _count(platform, cause, near.count, near.num_bytes)
    packed = platform.store.view(lambda tx: packs.names_of(tx, one.job))
    platform.log_files.remove(one.job, packed)
    while platform.store.transact(lambda tx: deletions.drop_rows(tx, one.job, limit=ROWS)):
        platform.may_act()
    if one.abandoned_by is None:
        known = platform.store.view(lambda tx: deletions.checkpoint_names(tx, one.job))
        far = files.remove_copies(platform, one.project, one.job, places, known)
        _count(platform, cause, far.count, far.num_bytes)
    if places.code is not None:
        _remove_code(platform, places.code, cause, now)

    def finish(tx: Tx) -> None:
        left = None if one.abandoned_by is None else left_of(tx, one)
        deletions.finish(tx, one.job, now, left)

    platform.store.transact(finish)


def _count(platform: Platform, cause: RemovalCause, items: int, num_bytes: int) -> None:
    if items or num_bytes:
        platform.store.transact(
            lambda tx: deletions.count(tx, DataKind.CHECKPOINTS, cause, items, num_bytes)
        )


def _remove_code(platform: Platform, digest: str, cause: RemovalCause, now: int) -> None:
    """Delete a code archive that nothing else names, unless it was asked for within the last hour."""

    def is_used(tx: Tx) -> bool:
        return (
            digest in jobs.code_in_use(tx, since=0)
            or digest in studies.code_in_use(tx, since=0)
            or digest in schedules.code_in_use(tx)
            or digest in templates.code_in_use(tx)
        )

    if platform.store.view(is_used):
        return
    num_bytes = code.remove(platform, digest, (now - _CODE_AGE_US) / 1e6)
    if num_bytes:
        platform.store.transact(lambda tx: deletions.count(tx, DataKind.CODE, cause, 1, num_bytes))
