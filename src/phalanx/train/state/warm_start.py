"""Warm start: a job begins from a checkpoint of another job.

The checkpoint is copied, or hard linked on the same disk, as the job's own first one, older than
all later ones. The run then resumes from it as after an interruption.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint.remote import fetch
from phalanx.checkpoint.remote_store import open_store
from phalanx.core.contract.trial import ForkSource
from phalanx.core.training.checkpoints import FileEntry, Manifest, is_of_job
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
    CheckpointNotFound,
    CheckpointUnavailable,
    NotFound,
    UserError,
)
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import job_label, random_hex
from phalanx.train.gang import context
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.search_turn import own_uid

_LOOK_EVERY_S = 1.0


def checkpoint_at(where: str | Path, info: RankInfo, flag: str) -> Path:
    """Return a checkpoint's folder, given that folder, a folder of checkpoints or a job (`j-12`).

    The newest checkpoint of a folder is chosen. Raises UserError, which names `flag`.
    """
    path = Path(where).expanduser()
    if not path.exists() and info.checkpoint_dir is not None:
        beside = info.checkpoint_dir.parent / path
        path = beside if beside.exists() else path
    try:
        checkpoint.read_manifest(path)
    except CheckpointCorrupt as error:
        raise UserError(f"{flag}: {error.message}") from None
    except CheckpointNotFound:
        found = checkpoint.resume_order(checkpoint.scan(path))
        if not found:
            said = f"{flag}: {path}: there is no committed checkpoint here"
            raise UserError(said, "name the folder of a checkpoint, or of a job's") from None
        return found[0].path
    return path


def adopt(where: str | Path, info: RankInfo, disk: checkpoint.Disk) -> None:
    """Copy a checkpoint into a job that has none; done by rank 0 before ranks choose a checkpoint.

    Raises UserError when it is missing or corrupt, instead of starting without it. Raises OSError.
    """
    store = info.checkpoint_dir
    if store is None:
        raise UserError("resume_from needs a folder for checkpoints", "set checkpoint_dir")
    if not info.is_main or info.resume_path is not None:
        return
    uid, here = own_uid(info), checkpoint.list_checkpoints(store)
    if any(is_of_job(one.manifest, uid) for one in here):
        return
    path = checkpoint_at(where, info, "resume_from")
    try:
        manifest = checkpoint.verify(path)
    except CheckpointCorrupt as error:
        raise UserError(f"resume_from: {error.message}") from None
    store.mkdir(parents=True, exist_ok=True)
    checkpoint.clean_debris(store, disk)
    draft = checkpoint.CheckpointWriter(store, manifest.name, disk)
    for entry in manifest.files:
        _take(draft, path, entry)
    draft.commit(_first_of(manifest, draft.files, info))


def adopt_parent(fork: ForkSource, info: RankInfo, disk: checkpoint.Disk) -> None:
    """Have a fork of another trial begin from that one's checkpoint, which may be on another node.

    It is fetched from the object store then; an upload under way is waited for. Raises CheckpointMissing,
    PermissionDenied, and what `adopt` raises.
    """
    far, here = info.checkpoint.store, info.checkpoint_dir
    begins = info.is_main and info.resume_path is None and here is not None
    if far is None or here is None or not begins or Path(fork.path).is_dir():
        adopt(fork.path, info, disk)
        return
    uid = own_uid(info)
    if any(is_of_job(one.manifest, uid) for one in checkpoint.list_checkpoints(here)):
        return
    here.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fork-", dir=here.parent) as near:
        theirs = f"{far.rstrip('/').rpartition('/')[0]}/{job_label(fork.job)}"
        found = _fetched(theirs, Path(fork.path).name, Path(near), info.checkpoint.wait_s, disk)
        adopt(found, info, disk)


def _fetched(url: str, name: str, into: Path, wait_s: float, disk: checkpoint.Disk) -> Path:
    """Copy a checkpoint out of an object store once it is there.

    Raises CheckpointMissing, PermissionDenied.
    """
    store, clock = open_store(url, context.store_variables()), SystemClock()
    until = clock.monotonic() + wait_s
    while True:
        try:
            return fetch(store, name, into, random_hex(8), disk)
        except (NotFound, CheckpointCorrupt, CheckpointUnavailable) as error:
            if clock.monotonic() >= until:
                said = f"{url}/{name}: the checkpoint to begin from cannot be read: {error.message}"
                raise CheckpointMissing(said) from error
            time.sleep(_LOOK_EVERY_S)


def _take(draft: checkpoint.CheckpointWriter, path: Path, entry: FileEntry) -> None:
    try:
        draft.add_link(path / entry.path, entry)
    except OSError:  # another disk, or a file system without hard links
        draft.add_file(entry.path, path / entry.path)


def _first_of(manifest: Manifest, files: tuple[FileEntry, ...], info: RankInfo) -> Manifest:
    """Return a manifest older than any checkpoint of this job, where attempts count from 1."""
    return replace(
        manifest,
        attempt=0,
        generation=0,
        parent=None,
        root=manifest.name,
        beginning=0,
        why="adopted",
        files=files,
        job_uid=info.job_uid,
    )
