"""Operations on a checkpoint directory: list, verify, choose, quarantine, delete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from phalanx.checkpoint.commit import DEBRIS
from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.checkpoint.disk import Disk
from phalanx.checkpoint.verified_reads import VerifiedFile, in_threads, is_there
from phalanx.core.training.checkpoints import (
    MANIFEST,
    Keep,
    Manifest,
    expired,
    is_checkpoint_name,
    lineages,
)
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, CheckpointUnavailable

QUARANTINED = ".quarantined-"
LARGEST_MANIFEST = 256 << 20  # bytes; 1 TB in chunks of 4 MB takes 10 MB
DEEPEST_MANIFEST = 32
PINS = "PINNED.json"
"""The file that names the checkpoints of a folder which retention must not delete.

The control plane writes it, and ranks read it each time before they delete checkpoints.
"""
_LARGEST_PINS = 1 << 20


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """A committed checkpoint and its directory."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """The checkpoints of a directory, by condition.

    `good` have a sound manifest (newest first), `bad` maps paths to the reason, `debris` was never
    committed, `quarantined` was set aside earlier. `unread` maps paths of checkpoints that the file system
    did not let us read to its error: nothing is known about them.
    """

    good: tuple[CommittedCheckpoint, ...] = ()
    bad: Mapping[Path, str] = field(default_factory=dict)
    debris: tuple[Path, ...] = ()
    quarantined: tuple[Path, ...] = ()
    unread: Mapping[Path, str] = field(default_factory=dict)


def parse_manifest(data: bytes, name: str) -> Manifest:
    """A manifest's bytes, checked against their own digest and the checkpoint's name.

    Raises CheckpointCorrupt when they are not sound.
    """
    try:
        if len(data) > LARGEST_MANIFEST:
            raise ValueError(f"{len(data)} bytes are too many for a manifest")
        body = json.loads(data)
        _require_depth(body)
        digest = body.pop("digest")
        if digest_of(canonical(body), like=digest) != digest:
            raise ValueError("the manifest does not match its own digest")
        manifest = Manifest.from_json(body)
        if manifest.name != name:
            raise ValueError(f"the manifest names checkpoint {manifest.name}")
    except RecursionError:
        raise CheckpointCorrupt(f"{name}/{MANIFEST}: nested too deep") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointCorrupt(f"{name}/{MANIFEST}: {error}") from error
    return manifest


def _require_depth(body: object) -> None:
    """Raise ValueError for JSON values that are nested deeper than manifests are."""
    level = [body]
    for _ in range(DEEPEST_MANIFEST):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise ValueError("nested too deep")


def read_manifest(path: Path) -> Manifest:
    """The manifest of one checkpoint directory, checked against its own digest and the name.

    Raises CheckpointNotFound when there is none, CheckpointCorrupt when it is not sound, and
    CheckpointUnavailable where the file system does not answer.
    """
    file = path / MANIFEST
    try:
        data = _content(file, LARGEST_MANIFEST + 1)
    except FileNotFoundError as error:
        raise CheckpointNotFound(f"{path}: there is no committed checkpoint here") from error
    except IsADirectoryError as error:
        raise CheckpointCorrupt(f"{file}: {error.strerror}") from error
    except OSError as error:
        raise CheckpointUnavailable(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return parse_manifest(data, path.name)
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(f"{path.parent}/{error.message}") from error


def _content(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts: list[bytes] = []
        left = limit
        while left and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def scan(store: Path) -> CheckpointListing:
    """Look through a job's checkpoint directory; one that does not exist is empty.

    Raises CheckpointUnavailable where the directory cannot be read: it may hold anything.
    """
    good: dict[str, CommittedCheckpoint] = {}
    bad: dict[Path, str] = {}
    unread: dict[Path, str] = {}
    debris: list[Path] = []
    quarantined: list[Path] = []
    for name in _names(store):
        path = store / name
        if QUARANTINED in name:
            quarantined.append(path)
        elif name.startswith("step-") and name.endswith(DEBRIS):
            debris.append(path)
        elif is_checkpoint_name(name):
            try:
                good[name] = CommittedCheckpoint(path, read_manifest(path))
            except CheckpointUnavailable as error:
                unread[path] = error.message
            except CheckpointCorrupt as error:
                bad[path] = error.message
            except CheckpointNotFound as error:
                if is_there(path):  # else it was deleted, or its disk went away, in this moment
                    bad[path] = error.message
    ordered = sorted(good.values(), key=lambda one: one.manifest.order, reverse=True)
    return CheckpointListing(tuple(ordered), bad, tuple(debris), tuple(quarantined), unread)


def _names(store: Path) -> list[str]:
    try:
        return sorted(os.listdir(store))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointUnavailable(f"{store}: {error.strerror or error}") from error


def is_quarantined_as(path: Path) -> str:
    """The name that a quarantined checkpoint had."""
    return path.name.partition(QUARANTINED)[0]


def is_bad(path: Path) -> str:
    """What is wrong with a checkpoint, by its manifest and the sizes of its files; empty: nothing.

    Also empty where that cannot be known, because the file system does not answer.
    """
    try:
        manifest = read_manifest(path)
        for entry in manifest.files:
            VerifiedFile(path, entry).check_size()
    except CheckpointNotFound as error:
        return error.message if is_there(path) else ""
    except CheckpointCorrupt as error:
        return error.message
    except CheckpointUnavailable:
        return ""
    return ""


def read_pins(folder: Path) -> frozenset[str]:
    """The names of pinned checkpoints; none where there is no such file.

    Raises CheckpointUnavailable where it cannot be read: any checkpoint may be pinned then.
    """
    path = folder / PINS
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_PINS + 1)
        names = json.loads(data) if len(data) <= _LARGEST_PINS else None
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except (OSError, ValueError) as error:
        raise CheckpointUnavailable(f"{path}: cannot be read: {error}") from error
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise CheckpointUnavailable(f"{path}: this is not a list of names")
    return frozenset(names)


def write_pins(folder: Path, names: Iterable[str]) -> None:
    """Replace the names of pinned checkpoints. Raises OSError."""
    wanted = sorted({one for one in names if is_checkpoint_name(one)})
    path = folder / PINS
    if not wanted and not path.exists():
        return
    partial = path.with_name(f"{PINS}.{os.getpid()}.tmp")
    with partial.open("wb") as file:
        file.write(json.dumps(wanted).encode())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def list_checkpoints(store: Path) -> list[CommittedCheckpoint]:
    """Committed checkpoints with a sound manifest, newest first. Raises CheckpointUnavailable."""
    return list(scan(store).good)


def resume_order(listing: CheckpointListing) -> list[CommittedCheckpoint]:
    """The order in which a resume tries checkpoints: the lineage of the newest, then the rest."""
    by_name = {one.manifest.name: one for one in listing.good}
    order = lineages({name: one.manifest for name, one in by_name.items()})
    return [by_name[manifest.name] for manifest in order]


def verify(path: Path) -> Manifest:
    """Read every byte of a checkpoint and compare all digests; returns its manifest.

    Raises CheckpointNotFound, CheckpointCorrupt or CheckpointUnavailable.
    """
    manifest = read_manifest(path)
    verify_share(path, manifest, (0, 1))
    return manifest


def verify_share(
    path: Path,
    manifest: Manifest,
    place: tuple[int, int],
    read: Mapping[str, VerifiedFile] | None = None,
) -> None:
    """Compare the digests of one reader's part of a checkpoint; `place` is (reader, number of readers).

    All readers together check every byte once; what this one has read through `read` (by the path in
    the manifest) it need not read again. Raises CheckpointCorrupt, CheckpointUnavailable.
    """
    reader, readers = place
    units: list[tuple[VerifiedFile, int]] = []
    for entry in manifest.files:
        file = (read or {}).get(entry.path) or VerifiedFile(path, entry, direct=True)
        file.check_size()
        units += [(file, at) for at in range(file.num_chunks)]
    mine = units[len(units) * reader // readers : len(units) * (reader + 1) // readers]
    left = [(file, at) for file, at in mine if not file.has_checked(at)]
    for file in {id(one): one for one, _ in left}.values():
        file.prepare([at for one, at in left if one is file])
    in_threads([partial(file.check, at) for file, at in left])


def newest_valid(store: Path) -> CommittedCheckpoint | None:
    """The checkpoint a resume would take, fully verified; None when there is none."""
    for one in resume_order(scan(store)):
        try:
            verify(one.path)
        except (CheckpointCorrupt, CheckpointNotFound):
            continue
        return one
    return None


def quarantine(path: Path, suffix: str, disk: Disk | None = None) -> Path:
    """Rename a bad checkpoint, so that it is kept for inspection but never resumed from.

    Raises OSError.
    """
    target = path.with_name(f"{path.name}{QUARANTINED}{suffix}")
    (disk or Disk()).rename(path, target)
    return target


def clean_debris(store: Path, disk: Disk | None = None) -> list[Path]:
    """Remove unfinished checkpoints of earlier generations. Call it before the first save."""
    found = scan(store).debris
    for path in found:
        (disk or Disk()).remove_tree(path)
    return list(found)


def remove(path: Path, disk: Disk | None = None) -> None:
    """Rename one checkpoint to debris, then delete its files. Raises OSError."""
    disk = disk or Disk()
    gone = path.with_name(path.name + DEBRIS)
    disk.rename(path, gone)
    disk.remove_tree(gone)


def retain(
    store: Path,
    keep: Keep,
    disk: Disk | None = None,
    *,
    check: Callable[[Path], Manifest] = verify,
    now: int | None = None,
    head: str | None = None,
) -> list[Manifest]:
    """Delete the checkpoints that `keep` does not retain; returns their manifests.

    `head` is the checkpoint from which training continues; by default what a resume would take. It is
    checked first; if it is not good, or something here cannot be read, nothing is deleted. Raises OSError.
    """
    try:
        listing = scan(store)
        good = {one.manifest.name: one for one in listing.good}
        manifests = {name: one.manifest for name, one in good.items()}
        if listing.unread or (head is not None and head not in good):
            return []
        doomed = expired(manifests, keep, now, head, pinned=read_pins(store))
        if not doomed:
            return []
        check(good[head or lineages(manifests)[0].name].path)
    except (CheckpointCorrupt, CheckpointNotFound, CheckpointUnavailable):
        return []
    for manifest in doomed:
        remove(good[manifest.name].path, disk)
    return doomed


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The result of a scrub: `valid`, `bad` (path to reason), and the new paths of bad ones.

    `unread` (path to reason) could not be read, and are left alone.
    """

    valid: tuple[Path, ...]
    bad: Mapping[Path, str]
    set_aside: Mapping[Path, Path]
    unread: Mapping[Path, str] = field(default_factory=dict)


def scrub(store: Path, suffix: str, disk: Disk | None = None) -> ScrubReport:
    """Verify every byte of every checkpoint in a directory, and quarantine corrupt ones.

    Run it regularly, to find corruption while an older copy exists. `suffix` makes the names of
    quarantined checkpoints unique. A checkpoint that vanishes meanwhile was deleted by its job.
    """
    listing = scan(store)
    bad, unread = dict(listing.bad), dict(listing.unread)
    valid: list[Path] = []
    for one in listing.good:
        try:
            verify(one.path)
            valid.append(one.path)
        except CheckpointNotFound:
            continue
        except CheckpointUnavailable as error:
            unread[one.path] = error.message
        except CheckpointCorrupt as error:
            if one.path.is_dir():
                bad[one.path] = error.message
    set_aside = {path: quarantine(path, suffix, disk) for path in bad}
    return ScrubReport(tuple(valid), bad, set_aside, unread)
