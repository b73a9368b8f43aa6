"""Store the images that ranks run in, as their clusters resolved them.

The spec names a tag, which may be another image tomorrow. Only the cluster knows the digest, once a node
has pulled the image; its executor says it with the state of each supervisor.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.executors.protocol import SupervisorStatus
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.provenance import rows
from phalanx.store.provenance.rows import ImageRow

Place = tuple[int, int, int]
"""Job, attempt and node rank."""


def store_images(platform: Platform, found: Sequence[SupervisorStatus], now: int) -> None:
    """Store the images in these states that are not stored yet; executors without images cost nothing."""
    images = {
        (one.ref.job, one.ref.attempt, one.ref.node_rank): one.image for one in found if one.image
    }
    if not images or not platform.store.view(lambda tx: _fresh(tx, images)):
        return

    def work(tx: Tx) -> None:
        fresh = _fresh(tx, images)
        # A job may have been deleted meanwhile: its rows would be left behind.
        there = jobs.versions_of(tx, sorted({job for job, _, _ in fresh}))
        made = [ImageRow(*place, images[place], now) for place in fresh if place[0] in there]
        if made:
            rows.put_images(tx, made)

    platform.store.transact(work)


def _fresh(tx: Tx, images: dict[Place, str]) -> list[Place]:
    """The places of which no image is stored."""
    stored = rows.images_of_attempts(tx, {(job, attempt) for job, attempt, _ in images})
    known = {(one.job, one.attempt, one.node_rank) for one in stored}
    return sorted(images.keys() - known)
