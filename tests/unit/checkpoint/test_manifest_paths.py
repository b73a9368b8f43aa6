"""Names of files in a manifest stay inside the checkpoint, for every reader of a folder on this disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import checkpoint
from phalanx.checkpoint import folders
from phalanx.checkpoint.commit import CheckpointWriter, sealed
from phalanx.checkpoint.remote import CheckpointUpload
from phalanx.core.training.checkpoints import MANIFEST, FileEntry, Manifest, checkpoint_name
from phalanx.errors import CheckpointCorrupt

pytestmark = pytest.mark.unit
EVIL = ["../../out/x", "/tmp/phalanx-evil", "a/../../x", "a//x", ".", "", "a\0b", MANIFEST]
ORIGIN = folders.FolderOrigin(job="j-1", attempt=1, generation=0, world_size=1, reference_world=1)


def commit(store: Path) -> tuple[Path, Manifest]:
    draft = CheckpointWriter(store, checkpoint_name(1, "0" * 8))
    draft.add_bytes("weights", b"1234")
    manifest = folders.manifest_of(draft, (), 1, ORIGIN, {}, 0, None)
    return draft.commit(manifest), manifest


def forge(store: Path, *paths: str) -> tuple[Path, Manifest]:
    """A committed checkpoint whose manifest, with a right digest of itself, names other files."""
    path, manifest = commit(store)
    entry = manifest.files[0]
    files = tuple(replace(entry, path=one) for one in paths)
    forged = replace(manifest, files=files)
    (path / MANIFEST).write_bytes(sealed(forged))
    return path, forged


@pytest.mark.parametrize("evil", EVIL)
def test_a_manifest_that_names_a_file_outside_is_a_bad_checkpoint(
    tmp_path: Path, evil: str
) -> None:
    path, _ = forge(tmp_path / "store", evil)
    with pytest.raises(CheckpointCorrupt, match="not a valid name"):
        checkpoint.verify(path)
    with pytest.raises(CheckpointCorrupt, match="not a valid name"):
        CheckpointUpload(path)
    listing = checkpoint.scan(tmp_path / "store")
    assert listing.good == () and "not a valid name" in listing.bad[path]
    assert checkpoint.newest_valid(tmp_path / "store") is None


def test_a_file_is_named_once(tmp_path: Path) -> None:
    path, _ = forge(tmp_path / "store", "weights", "weights")
    with pytest.raises(CheckpointCorrupt, match="named twice"):
        checkpoint.read_manifest(path)


def test_without_the_check_a_restore_writes_outside(tmp_path: Path) -> None:
    """The control: a manifest that is not read through the check reaches out of the script's folder."""
    path, forged = forge(tmp_path / "store", "../out")
    (path.parent / "out").write_bytes(b"1234")
    folders.put_back(path, forged, tmp_path / "home" / "folder")
    assert (tmp_path / "home" / "out").read_bytes() == b"1234"


@pytest.mark.parametrize("link", ["sub", "sub/deep"])
def test_a_restore_does_not_write_through_a_link_in_the_folder(tmp_path: Path, link: str) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "weights").write_bytes(b"old!")
    path, forged = forge(tmp_path / "store", "sub/deep/weights")
    (path / "sub/deep").mkdir(parents=True)
    (path / "sub/deep/weights").write_bytes(b"1234")
    (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(outside)
    (folder / folders.SET_ASIDE).symlink_to(outside)
    folders.put_back(path, forged, folder)
    assert (folder / "sub/deep/weights").read_bytes() == b"1234"
    assert not (folder / "sub").is_symlink() and not (folder / link).is_symlink()
    # What the link led to is as it was, and the link is not lost.
    assert (outside / "deep" / "weights").read_bytes() == b"old!"
    assert sorted(one.name for one in outside.rglob("*")) == ["deep", "weights"]
    assert (folder / folders.SET_ASIDE / link).readlink() == outside


def test_entries_with_ordinary_names_are_read_back() -> None:
    entry = FileEntry("a.b/..c/größe...", 1, "xxh3-128:00")
    assert (
        FileEntry.from_json({"path": entry.path, "size_bytes": 1, "digest": entry.digest}) == entry
    )
