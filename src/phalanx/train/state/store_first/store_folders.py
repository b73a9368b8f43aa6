"""Folders as checkpoints where several nodes have an object store: committed there, fetched by nodes."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from phalanx.checkpoint.folders import WHY
from phalanx.checkpoint.store_first.candidates import StoreFolders
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import make
from phalanx.core.training.checkpoints import Keep, Manifest
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import wait_for

_END_S = 30.0
_begun: set[StoreFirstTier] = set()
_lock = threading.Lock()


def tier_of(info: RankInfo, report: Report) -> StoreFirstTier | None:
    """The store where folders are committed; None where one node is enough, or there is no store.

    The ranks of such scripts do not communicate through Phalanx: whether several nodes share a folder is
    not known, and what is in the store is right either way.
    """
    url, folder = info.checkpoint.store, info.checkpoint_dir
    if url is None or folder is None or info.local_world_size == info.world_size:
        return None
    order, shared = (info.attempt, info.generation), info.local_world_size > 1
    return _opened(url, folder, info.checkpoint.keep, report, order, shared)


@cache
def _opened(
    url: str, folder: Path, keep: Keep, report: Report, order: tuple[int, int], shared: bool
) -> StoreFirstTier:
    def tell(kind: str, said: Mapping[str, Any]) -> None:
        report.write(make(kind, said))

    tier = StoreFirstTier(url, folder, keep, tell, order, shared=shared)
    atexit.register(tier.finish, _END_S)
    return tier


def begin(tier: StoreFirstTier) -> Mapping[str, Manifest] | None:
    """Begin this generation in the store, once (rank 0); returns what is there when it did.

    Raises CheckpointUnavailable, PermissionDenied.
    """
    with _lock:
        if tier in _begun:
            return None
        found = tier.claim()
        _begun.add(tier)
        return found


def search_for(tier: StoreFirstTier, folder: Path, info: RankInfo, report: Report) -> StoreFolders:
    """The search of one rank for the newest folder in the store.

    Ranks do not look at the same moment: others than rank 0 pass over what this generation has committed.
    """
    now = (info.attempt, info.generation)

    def suits(one: Manifest) -> bool:
        mine = info.is_main or (one.attempt, one.generation) != now
        return one.why == WHY and mine

    wait = wait_for(info, tier.url, suits)
    first = partial(begin, tier) if info.is_main else None
    return StoreFolders(tier, folder, report.write, wait, first)
