"""Delete the files of a job: its folders on this machine, and its copies in object stores."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from phalanx.checkpoint.removal.far import ROLES, FarRequest, remove_far
from phalanx.checkpoint.removal.near import Removed, remove_all, remove_some
from phalanx.errors import CheckpointUnavailable, InvariantBroken
from phalanx.kit.text import job_label
from phalanx.launch.identity import is_held
from phalanx.services.lifecycle.assignments import checkpoint_dir
from phalanx.services.platform import Platform
from phalanx.services.retention.places import JobPlaces, check_store, folder_of, store_env

FAR_TIMEOUT_S = 300.0
"""How long one call of the program that deletes in an object store may take."""


def checkpoint_folder(platform: Platform, project: str, num: int) -> Path:
    """The folder of a job's checkpoints on this machine, checked to be one of the home."""
    if project in ("", ".", "..") or "/" in project or "\0" in project:
        raise InvariantBroken(f"project {project!r} of job {num} is no name of a folder")
    return checkpoint_dir(platform.home, project, num)


def remove_job_folder(platform: Platform, num: int) -> None:
    """Delete the logs, code copies and secrets of a job; what is gone is fine.

    Raises CheckpointUnavailable while a supervisor holds a folder of it, and OSError.
    """
    folder = platform.home.job_dir(num)
    if folder.is_symlink():
        folder.unlink()
        return
    for node in folder.glob("a*/n*"):
        if is_held(node):
            raise CheckpointUnavailable(f"a supervisor still uses {node}", "it goes on later")
    if folder.exists():
        shutil.rmtree(folder)


def remove_near(platform: Platform, project: str, num: int, uid: str) -> Removed:
    """Delete all checkpoints of a job on this machine. Raises OSError, CheckpointUnavailable."""
    return remove_all(checkpoint_folder(platform, project, num), uid or None)


def remove_copies(
    platform: Platform,
    project: str,
    num: int,
    places: JobPlaces,
    known: Sequence[str],
    only: Sequence[str] | None = None,
) -> Removed:
    """Delete a job's copies in its stores, or with `only` some of them.

    Raises CheckpointUnavailable and other errors of a store, and those of reading secrets.
    """
    total = Removed()
    for url in places.stores:
        check_store(platform, url)
        folder = folder_of(url)
        if folder is not None:
            base = folder_of(url.rpartition(f"/{project}/{job_label(num)}")[0])
            if base is None or not base.is_dir():
                raise CheckpointUnavailable(f"{base}: this machine does not see the folder")
            total = total.plus(_remove_in_folder(folder, places.uid or None, only))
            continue
        env = store_env(platform, project, url, places)
        request = FarRequest(url, places.uid or None, list(known), only and list(only))
        total = total.plus(remove_far(request, env, platform.base_env, FAR_TIMEOUT_S))
    return total


def _remove_in_folder(folder: Path, uid: str | None, only: Sequence[str] | None) -> Removed:
    if only is not None:
        return remove_some(folder, only, uid)
    return remove_all(folder, uid)


def remove_near_some(
    platform: Platform, project: str, num: int, places: JobPlaces, names: Sequence[str]
) -> Removed:
    """Delete some checkpoints of a job on this machine. Raises OSError, CheckpointUnavailable."""
    folder = checkpoint_folder(platform, project, num)
    folders = [folder, *(folder / ROLES / role for role in places.roles)]
    total = Removed()
    for one in folders:
        total = total.plus(remove_some(one, names, places.uid or None))
    return total
