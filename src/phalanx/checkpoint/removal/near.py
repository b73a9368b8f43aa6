"""Delete checkpoints of a job in a folder of this machine.

Links are never followed: ranks write in these folders.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from phalanx.checkpoint.catalog import read_manifest
from phalanx.checkpoint.commit import DEBRIS
from phalanx.core.training.checkpoints import is_checkpoint_name, is_of_job
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound


@dataclass(frozen=True, slots=True)
class Removed:
    """Checkpoints that were deleted, and their bytes."""

    count: int = 0
    num_bytes: int = 0

    def plus(self, other: Removed) -> Removed:
        """Both together."""
        return Removed(self.count + other.count, self.num_bytes + other.num_bytes)


def remove_all(folder: Path, job_uid: str | None) -> Removed:
    """Delete everything of a job in its checkpoint folder, and the folder unless another job's is left.

    A folder that is gone is fine. Raises OSError, and CheckpointUnavailable for a manifest that cannot be
    read.
    """
    total, is_shared = Removed(), False
    for entry in _entries(folder):
        path = Path(entry.path)
        if entry.is_symlink() or not entry.is_dir():
            path.unlink(missing_ok=True)
        elif entry.name == "roles":
            for role in _entries(path):
                if role.is_dir(follow_symlinks=False):
                    total = total.plus(remove_all(Path(role.path), job_uid))
            is_shared |= not _remove_empty(path)
        elif _is_of_another(path, job_uid):
            is_shared = True
        else:
            total = total.plus(_remove_tree(path))
    if not is_shared:
        _remove_empty(folder)
    return total


def remove_some(folder: Path, names: Collection[str], job_uid: str | None) -> Removed:
    """Delete checkpoints of these names; those that are gone are fine. Raises as `remove_all`."""
    total = Removed()
    for name in names:
        if not is_checkpoint_name(name):
            continue
        for path in (folder / name, folder / f"{name}{DEBRIS}"):
            if path.is_symlink():
                path.unlink(missing_ok=True)
            elif path.is_dir() and not _is_of_another(path, job_uid):
                total = total.plus(_remove_tree(path))
    return total


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_of_another(path: Path, job_uid: str | None) -> bool:
    """Whether a folder is a committed checkpoint of another job."""
    if not is_checkpoint_name(path.name):
        return False
    try:
        return not is_of_job(read_manifest(path), job_uid)
    except (CheckpointCorrupt, CheckpointNotFound):
        return False


def _remove_tree(path: Path) -> Removed:
    """Delete a folder. A checkpoint is renamed first: no reader finds a part of one."""
    counted = is_checkpoint_name(path.name)
    num_bytes = _size_of(path) if counted else 0
    if counted:
        gone = path.with_name(path.name + DEBRIS)
        if gone.exists():
            shutil.rmtree(gone)
        path.rename(gone)
        path = gone
    shutil.rmtree(path)
    return Removed(int(counted), num_bytes)


def _size_of(path: Path) -> int:
    total = 0
    for root, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _remove_empty(folder: Path) -> bool:
    """Delete a folder that is empty; returns whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
