"""Folders as checkpoints, for scripts of any framework that keep their state in files of their own.

No torch here. One process of the gang saves; what it saved is committed, verified, kept and resumed like
any other checkpoint. Scripts that call `phalanx.train.init` have `run.checkpoint` instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint.folders import WHY, FolderOrigin, manifest_of
from phalanx.checkpoint.search import CheckpointSearch
from phalanx.checkpoint.store_first.candidates import StoreFolders
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import StepRecord, WarningRecord
from phalanx.core.training.checkpoints import Manifest, checkpoint_name, is_of_job, lineages
from phalanx.core.training.resumption import StartAction
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointUnavailable,
    NotSupported,
    UserError,
)
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import random_hex
from phalanx.train.gang import context
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report, report_to
from phalanx.train.gang.search_turn import own_uid, wait_for
from phalanx.train.state.committer import Committer, StoreDraft
from phalanx.train.state.storage import CheckpointStorage
from phalanx.train.state.store_first import store_folders

_NO_COPIES = (
    "checkpoint.store: folders that a script saves itself are not copied on a single node; set"
    " checkpoint.directory to the folder to have it copied"
)

_continued: dict[Path, Manifest] = {}


def save(
    folder: str | Path,
    *,
    step: int,
    metrics: Mapping[str, float] | None = None,
    checkpoint_dir: str | Path | None = None,
) -> Path | str | None:
    """Copy a folder's files into a checkpoint of `step`, and let go of what retention does not keep.

    Ranks other than 0 do nothing. With several nodes and `checkpoint.store` it is committed in the object
    store. Returns its folder or URL; None where nothing was saved, because neither the launcher nor
    `checkpoint_dir` names a place. Raises UserError, OSError; NotSupported for encryption;
    CheckpointUnavailable and PermissionDenied of the store.
    """
    info, source = _info(checkpoint_dir), Path(folder)
    if info.checkpoint_dir is None or not info.is_main:
        return None
    if info.keys:
        raise NotSupported(
            "folders are not encrypted", "remove checkpoint.encryption from the spec"
        )
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise UserError(f"{source}: the folder holds no files to save")
    clock = SystemClock()
    began = clock.monotonic()
    report = _report(info.report_file)
    tier = store_folders.tier_of(info, report)
    storage = CheckpointStorage() if tier is None else CheckpointStorage(tier, store_first=tier)
    if info.checkpoint.store is not None and tier is None:
        _say_once(info.report_file, _NO_COPIES)
    committer = Committer(info.checkpoint_dir, info, report, clock, checkpoint.Disk(), storage)
    name = checkpoint_name(step, random_hex(8))
    writer: checkpoint.CheckpointWriter | StoreDraft
    if tier is None:
        writer = checkpoint.CheckpointWriter(info.checkpoint_dir, name)
    else:
        writer = StoreDraft(tier, name)
    try:
        listed = _listed(info.checkpoint_dir, tier)
        for path in files:
            writer.add_file(path.relative_to(source).as_posix(), path)
        parent = _parent(info, info.checkpoint_dir, listed, step)
        said, now = dict(metrics or {}), clock.now()
        manifest = manifest_of(writer, listed, step, _origin(info), said, now, parent)
        report.write(StepRecord(step=step, epoch=0, consumed=0))
        made = committer.finish(writer, manifest, began)
        _continued[info.checkpoint_dir] = manifest
        return Path(made) if tier is None else made
    except BaseException:
        writer.abandon()
        raise
    finally:
        if tier is not None:
            tier.keep_near(name, committed=False)  # nodes fetch whole folders


def newest(checkpoint_dir: str | Path | None = None) -> tuple[Path, int] | None:
    """The newest folder that verifies, and its step; None when there is none.

    Every byte is read and compared. Rank 0 sets aside what does not verify; the one before it is taken.
    What the job has committed and cannot be read is waited for. With several nodes and `checkpoint.store`
    each node fetches it from the object store. Raises CheckpointMissing; PermissionDenied of the store.
    """
    info = _info(checkpoint_dir)
    store = info.checkpoint_dir
    if store is None:
        return None
    clock, report = SystemClock(), _report(info.report_file)
    tier = store_folders.tier_of(info, report)
    search: CheckpointSearch | StoreFolders
    if tier is None:
        wait = wait_for(info, str(store), lambda one: one.why == WHY)
        search = CheckpointSearch(store, wait, report.write, quarantines=info.is_main)
    else:
        search = store_folders.search_for(tier, store, info, report)
    while True:
        decision = search.next(clock.monotonic())
        if decision.action is StartAction.WAIT:
            time.sleep(search.pause_s)
            continue
        if decision.action is not StartAction.RESUME:
            return None
        path = store / decision.order[0].name
        try:
            manifest = checkpoint.verify(path)
        except (CheckpointNotFound, CheckpointUnavailable) as error:
            search.could_not_read(path.name, error.message)
        except CheckpointCorrupt as error:
            search.reject_copy(path, error.message)
        else:
            _continued[store] = manifest
            return path, manifest.step


def _listed(store: Path, tier: StoreFirstTier | None) -> list[Manifest]:
    """The committed checkpoints, best first. Raises CheckpointUnavailable, PermissionDenied."""
    if tier is None:
        return [one.manifest for one in checkpoint.resume_order(checkpoint.scan(store))]
    store_folders.begin(tier)
    return list(lineages(tier.manifests()))


def _parent(info: RankInfo, store: Path, listed: list[Manifest], step: int) -> Manifest | None:
    """The checkpoint that this process continued from or saved last.

    A script that keeps its state elsewhere never asks for the newest one: it continues from what is here,
    unless that has more steps.
    """
    if store in _continued:
        return _continued[store]
    uid = own_uid(info)
    found = [one for one in listed if is_of_job(one, uid)][:1]
    return next((one for one in found if one.step < step), None)


def _info(checkpoint_dir: str | Path | None) -> RankInfo:
    return context.with_checkpoints(context.read(), {"dir": checkpoint_dir})


@cache
def _say_once(path: Path | None, message: str) -> None:
    _report(path).write(WarningRecord(message))


@cache
def _report(path: Path | None) -> Report:
    return report_to(path, SystemClock().now)


def _origin(info: RankInfo) -> FolderOrigin:
    return FolderOrigin(
        job=info.job,
        job_uid=info.job_uid,
        attempt=info.attempt,
        generation=info.generation,
        world_size=info.world_size,
        reference_world=info.reference_world,
        script=Path(sys.argv[0]).name,
        beginning=info.beginning,
    )
