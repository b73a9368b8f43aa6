"""Checkpoints of a folder that a script writes: copied when unchanged, restored before a start.

A checkpoint holds the whole folder. Files that did not change since the one before are shared with it
(a hard link), so that scripts which keep many files do not pay for them again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Protocol

import phalanx
from phalanx.checkpoint.commit import CheckpointWriter
from phalanx.checkpoint.digest import digest_of_file
from phalanx.core.training.checkpoints import FileEntry, Manifest, Position, root_after
from phalanx.errors import CheckpointCorrupt

WHY = "folder"
# Names of files that are being written, in the habits of torch, TensorFlow, rsync and editors.
_UNFINISHED = (".tmp", ".temp", "_temp", ".part", ".partial", ".incomplete", ".lock", "~")
SET_ASIDE = ".uncommitted"
_ARRIVING = ".arriving"

Stat = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOrigin:
    """The job, attempt and generation that commit a folder, as the manifest names them."""

    job: str | None  # None: outside the platform
    attempt: int  # number in the job
    generation: int  # number in the attempt
    world_size: int  # ranks
    reference_world: int  # world size to which the script's batch size refers
    script: str = ""  # its name
    job_uid: str | None = None  # unique over all databases
    beginning: int = 0  # attempts before the owner had the job begin anew
    provenance: str = ""  # digest over what the job was made of


class FolderDraft(Protocol):
    """A checkpoint that is being written, in a folder or in an object store."""

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        ...

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The files that it has."""
        ...


def manifest_of(
    draft: FolderDraft,
    listed: Iterable[Manifest],
    step: int,
    origin: FolderOrigin,
    metrics: Mapping[str, float | str],
    now: int,
    parent: Manifest | None,
) -> Manifest:
    """The manifest of a draft that holds a folder's files; `now` in microseconds UTC.

    `listed` are the checkpoints that are there, `parent` is the one that the script continued from.
    """
    return Manifest(
        name=draft.name,
        step=step,
        position=Position(),
        attempt=origin.attempt,
        generation=origin.generation,
        commit=1 + max((one.commit for one in listed), default=0),
        parent=None if parent is None else parent.name,
        root=root_after(parent, draft.name),
        beginning=origin.beginning if parent is None else parent.beginning,
        world_size=origin.world_size,
        reference_world=origin.reference_world,
        global_batch=None,
        created_at=now,
        why=WHY,
        files=draft.files,
        job=origin.job,
        job_uid=origin.job_uid,
        provenance=origin.provenance,
        strategy="folder",
        code={"script": origin.script},
        versions={"phalanx": phalanx.__version__},
        metrics=dict(metrics),
    )


def look(folder: Path) -> dict[str, Stat]:
    """Every finished file below a folder: (bytes, time of its last change in ns, inode).

    Hidden names, and names of files that are still being written, do not count; neither do links, nor what
    is no file: to read a pipe would take for ever. A folder that is absent has no files. Raises OSError
    where one cannot be read: a commit without its files would be one that lost them.
    """
    found: dict[str, Stat] = {}
    for where, folders, names in os.walk(folder, onerror=_unless_absent):
        folders[:] = [name for name in folders if _is_finished(name)]
        for name in names:
            path = Path(where, name)
            if _is_finished(name):
                try:
                    about = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(about.st_mode):
                    key = path.relative_to(folder).as_posix()
                    found[key] = (about.st_size, about.st_mtime_ns, about.st_ino)
    return found


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _is_finished(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(_UNFINISHED)


@dataclass(slots=True)
class PreviousCommit:
    """The files of the last commit of a folder, so that the next shares unchanged ones."""

    path: Path | None = None
    stats: dict[str, Stat] = field(default_factory=dict)
    entries: dict[str, FileEntry] = field(default_factory=dict)

    def holds(self, name: str, about: Stat) -> FileEntry | None:
        """The entry of a file that has not changed since."""
        return self.entries.get(name) if self.stats.get(name) == about else None

    def take(self, path: Path, stats: dict[str, Stat], files: tuple[FileEntry, ...]) -> None:
        """Make this commit the one that the next shares files with."""
        self.path, self.stats = path, stats
        self.entries = {entry.path: entry for entry in files}


def fill(
    draft: CheckpointWriter, folder: Path, stats: Mapping[str, Stat], shared: PreviousCommit
) -> bool:
    """Bring the files of a folder into a draft; False when they changed meanwhile. Raises OSError."""
    for name, about in sorted(stats.items()):
        entry = shared.holds(name, about)
        if entry is not None and shared.path is not None:
            try:
                draft.add_link(shared.path / name, entry)
                continue
            except OSError:
                pass  # removed in the meantime, or a file system without links
        draft.add_file(name, folder / name)
    return look(folder) == dict(stats)


def put_back(source: Path, manifest: Manifest, folder: Path) -> None:
    """Restore a folder to its state when `manifest` was committed at `source`.

    Equal files are not touched. Newer files are moved to `.uncommitted` inside the folder, and so are links
    that stand where a folder was: nothing is written through them. Raises CheckpointCorrupt for a file that
    is not what the manifest says, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {entry.path: entry for entry in manifest.files}
    aside = folder / SET_ASIDE
    later = [name for name in look(folder) if name not in wanted]
    later += sorted(_links_on_the_way(folder, wanted))
    if later:
        if aside.is_symlink():
            aside.unlink()
        shutil.rmtree(aside, ignore_errors=True)
    for name in later:
        _set_aside(folder / name, aside / name)
    for name, entry in wanted.items():
        target = folder / name
        if _is_same(target, entry):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        arriving = target.with_name(f".{target.name}.{os.getpid()}{_ARRIVING}")
        try:
            shutil.copyfile(source / name, arriving)
            if digest_of_file(arriving, like=entry.digest) != entry.digest:
                raise CheckpointCorrupt(f"{source / name}: the bytes do not match their digest")
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(
                    target
                )  # has taken the file's place; what was whole in it is set aside
            os.replace(arriving, target)
        finally:
            arriving.unlink(missing_ok=True)


def _links_on_the_way(folder: Path, wanted: Mapping[str, FileEntry]) -> set[str]:
    """The outermost links of the folder that stand in the place of a folder of `wanted`."""
    found: set[str] = set()
    for name in wanted:
        above = [parent for parent in reversed(PurePath(name).parents) if parent.parts]
        link = next((one for one in above if (folder / one).is_symlink()), None)
        if link is not None:
            found.add(link.as_posix())
    return found


def _set_aside(path: Path, target: Path) -> None:
    """Move a file. Another node that has the same folder may be doing the same."""
    while os.path.lexists(path):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if target.parent.exists() and not target.parent.is_dir():
                raise
            continue  # the other node has just removed it
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, target)


def _is_same(path: Path, entry: FileEntry) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size != entry.size_bytes:
            return False
        return digest_of_file(path, like=entry.digest) == entry.digest
    except OSError:
        return False
