"""Folders as checkpoints where several nodes have an object store: committed there, fetched by nodes."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from phalanx import checkpoint
from phalanx.checkpoint.folders import WHY
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import WarningRecord, make
from phalanx.core.training.checkpoints import Keep, Manifest, is_checkpoint_name
from phalanx.core.training.resumption import FoundCheckpoints
from phalanx.errors import CheckpointUnavailable
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import wait_for
from phalanx.train.state.store_first.candidates import StoreCandidates

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


class StoreFolders(StoreCandidates):
    """Finds the newest folder in the store, and has it here as a whole. Every rank has one.

    Ranks do not look at the same moment: others than rank 0 pass over what this generation has committed.
    """

    def __init__(self, tier: StoreFirstTier, folder: Path, info: RankInfo, report: Report) -> None:
        now = (info.attempt, info.generation)

        def suits(one: Manifest) -> bool:
            mine = info.is_main or (one.attempt, one.generation) != now
            return one.why == WHY and mine

        super().__init__(tier, folder, report, wait_for(info, tier.url, suits))
        self._is_main = info.is_main
        self._damaged: set[str] = set()

    def _look(self) -> FoundCheckpoints:
        try:
            far = begin(self._tier) if self._is_main else None
            far = self._tier.manifests() if far is None else far
        except CheckpointUnavailable as error:
            return FoundCheckpoints(store_error=error.message)
        near = self._near() if self._is_main else []
        return self._found(near, far)

    def _bring(self, name: str) -> bool:
        if not super()._bring(name) or not self._tier.bring(self._folder / name):
            return False
        for one in checkpoint.scan(self._folder).good:  # an earlier copy is not needed any more
            if one.manifest.name != name and one.manifest.name in self._far:
                checkpoint.remove(one.path)
        return True

    def reject_copy(self, path: Path, why: str) -> None:
        """Delete a damaged copy, so that it is fetched again; the second time pass it over."""
        if path.name in self._damaged or not is_checkpoint_name(path.name):
            self.reject(path.name, why)
            return
        self._damaged.add(path.name)
        self._report.write(WarningRecord(f"{path}: {why}; it is fetched again"))
        checkpoint.remove(path)
