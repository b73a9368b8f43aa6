"""Stores of data outside the nodes: replace them, list them, and tell what runs outside its residency."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.pools import StoreView
from phalanx.schemas.pools.project_file import StoreSpec
from phalanx.services.platform import Platform
from phalanx.services.residency.rules import ResidencyRules
from phalanx.store import resources
from phalanx.store.database import Tx
from phalanx.store.resources import Applied


def replace_stores(tx: Tx, stores: Sequence[StoreSpec], now: int, actor: str) -> None:
    """Replace all declared stores; those that stay as they are keep their time."""
    before = {one.name: StoreSpec(**one.body) for one in resources.data_stores.now(tx)}
    after = {one.url: one for one in stores}
    for url in before.keys() - after.keys():
        resources.data_stores.remove(tx, url)
    changed = [one for url, one in after.items() if before.get(url) != one]
    resources.data_stores.put(
        tx, [Applied(one.url, one.model_dump(mode="json"), now, actor) for one in changed]
    )


def list_stores(platform: Platform) -> list[StoreView]:
    """The declared stores by URL."""
    found = platform.store.view(resources.data_stores.now)
    return [
        StoreView(
            url=one.name,
            residency=StoreSpec(**one.body).residency,
            applied_at=at_of(one.applied_at),
            applied_by=one.applied_by,
        )
        for one in found
    ]


def outside_warnings(platform: Platform) -> list[str]:
    """Running jobs on nodes, or with stores, that their residency does not allow, in words.

    Raises ExecutorUnavailable.
    """

    def work(tx: Tx) -> list[str]:
        rules = ResidencyRules.of(resources.projects.now(tx), resources.data_stores.now(tx))
        return rules.warnings(platform.scheduler_cache.rows.holding(tx), labels)

    labels = {node.id: node.labels for node in platform.cluster()}
    return platform.store.view(work)
