"""What the process beside a rank does in an object store, but for the bytes of files (`transfers`).

A generation that starts leaves a mark in the store. One that finds a newer mark does not commit and deletes
nothing: its ranks may run on after the platform gave them up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from phalanx.checkpoint.remote import (
    RemoteListing,
    check_arrived,
    commit_manifest,
    look,
    manifest_of,
    remove,
)
from phalanx.checkpoint.remote_store import ObjectStore
from phalanx.core.training.checkpoints import Keep, expired
from phalanx.errors import CheckpointCorrupt, Conflict

MARKS = "generations"

Order = tuple[int, int]
"""(attempt, generation)."""


def _mark(order: Order) -> str:
    return f"{MARKS}/{order[0]:08d}-{order[1]:08d}"


def claim(store: ObjectStore, order: Order, near: Callable[[str], bool]) -> RemoteListing:
    """Mark the beginning of a generation, and delete what earlier ones left incomplete.

    `near`: whether a checkpoint of that name is committed in the local folder, and may be uploaded yet.
    Raises CheckpointUnavailable, PermissionDenied.
    """
    store.create(_mark(order), b"begun\n")
    listing = look(store)
    if not _superseded(store, order):
        for name in listing.debris:
            if not near(name):
                remove(store, name, listing.objects[name])
    return listing


def _superseded(store: ObjectStore, order: Order) -> bool:
    return any(found.name > _mark(order) for found in store.objects(MARKS))


def _require_newest(store: ObjectStore, order: Order) -> None:
    if _superseded(store, order):
        raise Conflict("a newer generation of this job has started")


def commit(store: ObjectStore, name: str, data: bytes, order: Order) -> None:
    """Commit a checkpoint by its manifest when all its files are there.

    Raises Conflict when a newer generation has started or another process has committed it;
    CheckpointUnavailable, PermissionDenied.
    """
    manifest = manifest_of(data, name)
    _require_newest(store, order)
    check_arrived(manifest, {found.name: found for found in store.objects(name)})
    try:
        commit_manifest(store, name, data)
    except CheckpointCorrupt as error:
        raise Conflict(error.message) from error


def abandon(store: ObjectStore, name: str) -> None:
    """Delete the parts of a checkpoint that is not committed."""
    remove(store, name, [found.name.partition("/")[2] for found in store.objects(name)])


def retire(
    store: ObjectStore,
    known: RemoteListing,
    order: Order,
    keep: Keep,
    now: int,
    head: str,
    pinned: Collection[str] = (),
) -> tuple[str, ...]:
    """Delete what `keep` does not retain; returns the names. `now`: microseconds UTC.

    `head` is the checkpoint from which training continues; without it nothing is deleted. Those that are
    `pinned` stay.
    """
    gone = expired(known.good, keep, now, head, pinned=pinned) if head in known.good else []
    if gone:
        _require_newest(store, order)
    for manifest in gone:
        remove(store, manifest.name, known.objects[manifest.name])
    return tuple(manifest.name for manifest in gone)


def keep_note(store: ObjectStore, name: str, data: bytes, order: Order) -> None:
    """Replace a small object beside the checkpoints.

    Raises Conflict when a newer generation has started; CheckpointUnavailable, PermissionDenied.
    """
    _require_newest(store, order)
    store.put(name, lambda: [data], len(data))
