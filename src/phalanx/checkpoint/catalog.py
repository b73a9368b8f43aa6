"""Operations on a checkpoint directory: list, verify, choose, quarantine, delete."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phalanx.checkpoint.commit import DEBRIS
from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.checkpoint.disk import Disk
from phalanx.checkpoint.verified_reads import VerifiedFile, in_threads
from phalanx.core.training.checkpoints import (
    MANIFEST,
    Keep,
    Manifest,
    expired,
    is_checkpoint_name,
    lineages,
)
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound

QUARANTINED = ".quarantined-"


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """A committed checkpoint and its directory."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """The checkpoints of a directory, by condition.

    `good` have a sound manifest (newest first), `bad` maps paths to the reason, `debris` was never
    committed, `quarantined` was set aside earlier.
    """

    good: tuple[CommittedCheckpoint, ...]
    bad: Mapping[Path, str]
    debris: tuple[Path, ...]
    quarantined: tuple[Path, ...]


def parse_manifest(data: bytes, name: str) -> Manifest:
    """A manifest's bytes, checked against their own digest and the checkpoint's name.

    Raises ValueError, KeyError, TypeError or AttributeError when they are not sound.
    """
    body = json.loads(data)
    digest = body.pop("digest")
    if digest_of(canonical(body), like=digest) != digest:
        raise ValueError("the manifest does not match its own digest")
    manifest = Manifest.from_json(body)
    if manifest.name != name:
        raise ValueError(f"the manifest names checkpoint {manifest.name}")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of one checkpoint directory, checked against its own digest and the name.

    Raises CheckpointNotFound when there is none, CheckpointCorrupt when it is not sound.
    """
    file = path / MANIFEST
    try:
        manifest = parse_manifest(file.read_bytes(), path.name)
    except FileNotFoundError as error:
        raise CheckpointNotFound(f"{path}: there is no committed checkpoint here") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{file}: {error}") from error
    return manifest


def scan(store: Path) -> CheckpointListing:
    """Look through a job's checkpoint directory; one that does not exist is empty."""
    good: dict[str, CommittedCheckpoint] = {}
    bad: dict[Path, str] = {}
    debris: list[Path] = []
    quarantined: list[Path] = []
    entries = sorted(store.iterdir()) if store.is_dir() else []
    for path in entries:
        if QUARANTINED in path.name:
            quarantined.append(path)
        elif path.name.startswith("step-") and path.name.endswith(DEBRIS):
            debris.append(path)
        elif is_checkpoint_name(path.name):
            try:
                good[path.name] = CommittedCheckpoint(path, read_manifest(path))
            except (CheckpointCorrupt, CheckpointNotFound) as error:
                bad[path] = error.message
    ordered = sorted(good.values(), key=lambda one: one.manifest.order, reverse=True)
    return CheckpointListing(tuple(ordered), bad, tuple(debris), tuple(quarantined))


def list_checkpoints(store: Path) -> list[CommittedCheckpoint]:
    """Committed checkpoints with a sound manifest, newest first."""
    return list(scan(store).good)


def resume_order(listing: CheckpointListing) -> list[CommittedCheckpoint]:
    """The order in which a resume tries checkpoints: the lineage of the newest, then the rest."""
    by_name = {one.manifest.name: one for one in listing.good}
    order = lineages({name: one.manifest for name, one in by_name.items()})
    return [by_name[manifest.name] for manifest in order]


def verify(path: Path) -> Manifest:
    """Read every byte of a checkpoint and compare all digests; returns its manifest.

    Raises CheckpointNotFound or CheckpointCorrupt.
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
    the manifest) it need not read again. Raises CheckpointCorrupt.
    """
    reader, readers = place
    units: list[tuple[VerifiedFile, int]] = []
    for entry in manifest.files:
        file = (read or {}).get(entry.path) or VerifiedFile(path, entry, direct=True)
        file.check_size()
        units += [(file, at) for at in range(file.num_chunks)]
    mine = units[len(units) * reader // readers : len(units) * (reader + 1) // readers]
    in_threads([partial(file.check, at) for file, at in mine if not file.has_checked(at)])


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
) -> list[Manifest]:
    """Delete the checkpoints that `keep` does not retain; returns their manifests.

    The newest is verified first; if it is bad, nothing is deleted. Raises OSError.
    """
    good = {one.manifest.name: one for one in scan(store).good}
    doomed = expired({name: one.manifest for name, one in good.items()}, keep, now)
    if not doomed:
        return []
    head = lineages({name: one.manifest for name, one in good.items()})[0]
    try:
        check(good[head.name].path)
    except (CheckpointCorrupt, CheckpointNotFound):
        return []
    for manifest in doomed:
        remove(good[manifest.name].path, disk)
    return doomed


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The result of a scrub: `valid`, `bad` (path to reason), and the new paths of bad ones."""

    valid: tuple[Path, ...]
    bad: Mapping[Path, str]
    set_aside: Mapping[Path, Path]


def scrub(store: Path, suffix: str, disk: Disk | None = None) -> ScrubReport:
    """Verify every byte of every checkpoint in a directory, and quarantine corrupt ones.

    Run it regularly, to find corruption while an older copy exists. `suffix` makes the names of
    quarantined checkpoints unique. A checkpoint that vanishes meanwhile was deleted by its job.
    """
    listing = scan(store)
    bad = dict(listing.bad)
    valid: list[Path] = []
    for one in listing.good:
        try:
            verify(one.path)
            valid.append(one.path)
        except CheckpointNotFound:
            continue
        except CheckpointCorrupt as error:
            if one.path.is_dir():
                bad[one.path] = error.message
    set_aside = {path: quarantine(path, suffix, disk) for path in bad}
    return ScrubReport(tuple(valid), bad, set_aside)
