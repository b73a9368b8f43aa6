"""Warm start: a job begins from a checkpoint of another job.

The checkpoint is copied, or hard linked on the same disk, as the job's own first one, older than
all later ones. The run then resumes from it as after an interruption.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phalanx import checkpoint
from phalanx.core.training.checkpoints import FileEntry, Manifest, is_of_job
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, UserError
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.search_turn import own_uid


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
