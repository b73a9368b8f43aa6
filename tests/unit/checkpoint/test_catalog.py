"""What a listing, a verification and retention make of a disk that does not answer, and of nonsense."""

import errno
import json
import os

import pytest

from phalanx import checkpoint
from phalanx.checkpoint import catalog
from phalanx.core.training.checkpoints import MANIFEST, Keep, checkpoint_name
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable
from support.faulty_files import FaultyFiles
from support.manifests import manifest_of

pytestmark = pytest.mark.unit

# A mount that is away, a server that restarted, a loop of symbolic links, a file in place of a folder.
NO_ANSWER = (errno.EIO, errno.ESTALE, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.ETIMEDOUT)


def commit(store, step, *, number=None, parent=None, root="", attempt=1, size=64):
    number = step if number is None else number
    writer = checkpoint.CheckpointWriter(
        store, checkpoint_name(step, f"{attempt:02x}{number:06x}"), None
    )
    writer.add_bytes("shard-00000/state.tensors", os.urandom(size))
    told = {"name": writer.name, "files": writer.files, "root": root or writer.name}
    return writer.commit(manifest_of(step, attempt=attempt, commit=number, parent=parent, **told))


def line(store, *steps):
    paths = []
    for number, step in enumerate(steps, start=1):
        parent = paths[-1].name if paths else None
        root = paths[0].name if paths else ""
        paths.append(commit(store, step, number=number, parent=parent, root=root))
    return paths


@pytest.mark.parametrize("number", NO_ANSWER)
def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path, monkeypatch, number):
    line(tmp_path, 1, 2)
    FaultyFiles(tmp_path, monkeypatch).reading = number
    with pytest.raises(CheckpointUnavailable, match=os.strerror(number)):
        checkpoint.scan(tmp_path)


def test_a_loop_of_links_and_a_plain_file_are_not_an_empty_folder(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("")
    for name in ("a", "file"):
        with pytest.raises(CheckpointUnavailable):
            checkpoint.scan(tmp_path / name)
    assert checkpoint.scan(tmp_path / "none") == checkpoint.CheckpointListing()


@pytest.mark.parametrize("number", NO_ANSWER)
def test_a_manifest_that_cannot_be_read_is_not_bad_and_stops_retention(
    tmp_path, monkeypatch, number
):
    paths = line(tmp_path, 1, 2, 3)
    faults = FaultyFiles(tmp_path, monkeypatch)
    faults.reading, faults.only = number, f"{paths[2].name}/"
    listing = checkpoint.scan(tmp_path)
    assert (list(listing.unread), listing.bad) == ([paths[2]], {})
    assert checkpoint.retain(tmp_path, Keep(1)) == []
    assert checkpoint.scrub(tmp_path, "0").set_aside == {}
    faults.heal()
    assert len(checkpoint.scan(tmp_path).good) == 3


@pytest.mark.parametrize("number", NO_ANSWER)
def test_bytes_that_cannot_be_read_are_not_corrupt(tmp_path, monkeypatch, number):
    (path,) = line(tmp_path, 1)
    faults = FaultyFiles(tmp_path, monkeypatch)
    faults.reading, faults.only = number, "state.tensors"
    with pytest.raises(CheckpointUnavailable):
        checkpoint.verify(path)
    assert checkpoint.is_bad(path) == ""


def test_a_file_is_lost_only_while_its_checkpoint_is_there(tmp_path):
    first, second = line(tmp_path, 1, 2)
    manifest = checkpoint.read_manifest(second)
    (first / "shard-00000/state.tensors").unlink()
    with pytest.raises(CheckpointCorrupt):
        checkpoint.verify(first)
    assert "cannot be read" in checkpoint.is_bad(first)
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointUnavailable):
        checkpoint.verify_share(second, manifest, (0, 1))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"digest":"xxh3-128:00","metrics":' + b"[" * 200 + b"]" * 200 + b"}",
        b"[]",
        b"7",
        b'"text"',
        b'{"digest": 5}',
        b'{"digest": "none:00"}',
        b'{"digest": "\\ud800"}',
        b"\xff\xfe",
        b"1" * 5000,
        b"",
    ],
    ids=range(12),
)
def test_any_bytes_in_place_of_a_manifest_make_a_bad_checkpoint(tmp_path, content):
    first, second = line(tmp_path, 1, 2)
    (second / MANIFEST).write_bytes(content)
    listing = checkpoint.scan(tmp_path)
    assert ([one.path for one in listing.good], list(listing.bad)) == ([first], [second])
    assert checkpoint.newest_valid(tmp_path).path == first
    with pytest.raises(CheckpointCorrupt):
        checkpoint.verify(second)


def test_a_manifest_of_more_bytes_than_any_has_is_bad(tmp_path, monkeypatch):
    (path,) = line(tmp_path, 1)
    size = (path / MANIFEST).stat().st_size
    monkeypatch.setattr(catalog, "LARGEST_MANIFEST", size)
    assert checkpoint.scan(tmp_path).bad == {}
    monkeypatch.setattr(catalog, "LARGEST_MANIFEST", size - 1)
    assert "too many" in checkpoint.scan(tmp_path).bad[path]


def test_a_sound_digest_does_not_make_other_types_sound(tmp_path):
    from phalanx.checkpoint.digest import canonical, digest_of

    (path,) = line(tmp_path, 1)
    body = json.loads((path / MANIFEST).read_bytes())
    for change in ({"step": 10**400}, {"files": [{"path": "../../x"}]}, {"world_size": "many"}):
        changed = {key: value for key, value in {**body, **change}.items() if key != "digest"}
        changed["digest"] = digest_of(canonical(changed))
        (path / MANIFEST).write_bytes(canonical(changed))
        listing = checkpoint.scan(tmp_path)
        assert list(listing.bad) + [one.path for one in listing.good] == [path]
        assert list(listing.bad) == [path] or "step" in change


def test_retention_keeps_what_the_head_does_not_continue(tmp_path):
    old = line(tmp_path, 9, 12, 14)
    fresh = commit(tmp_path, 3, number=9, attempt=2)
    later = commit(tmp_path, 6, number=10, attempt=2, parent=fresh.name, root=fresh.name)
    gone = checkpoint.retain(tmp_path, Keep(1), head=later.name)
    assert [one.name for one in gone] == [fresh.name]
    assert all(path.is_dir() for path in old)
    assert checkpoint.newest_valid(tmp_path).path == old[-1]
    assert checkpoint.retain(tmp_path, Keep(1), head=checkpoint_name(99, "00000000")) == []
