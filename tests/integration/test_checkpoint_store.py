"""The commit protocol on a real file system: whatever is killed, broken or full, and when."""

import errno
import os
import random
import shutil
import signal

import pytest

from integration.thread_gang import ThreadGang
from phalanx import checkpoint
from phalanx.checkpoint import tensorfile
from phalanx.core.training.checkpoints import Best, Keep, Position, checkpoint_name
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound
from support.manifests import manifest_of

pytestmark = pytest.mark.integration

OPERATIONS = ("make_dir", "create", "write", "sync", "close", "sync_dir", "rename", "remove_tree")


class Watched:
    """A disk that calls `at(n, name)` before its n-th operation."""

    def __init__(self, at):
        self.count = 0
        self._at = at
        self._disk = checkpoint.Disk()

    def __getattr__(self, name):
        assert name in OPERATIONS

        def call(*args):
            self.count += 1
            if name == "close":  # a close that fails has closed all the same
                self._disk.close(*args)
                return self._at(self.count, name)
            self._at(self.count, name)
            return getattr(self._disk, name)(*args)

        return call


def save(store, commit, disk=None, parent=None, generation=0, **metrics):
    draft = checkpoint.CheckpointWriter(store, checkpoint_name(commit * 10, f"{commit:08x}"), disk)
    values = bytes([commit]) * 1000
    draft.add_tensors(
        "shard-00000/state.tensors",
        {"step": commit},
        [
            tensorfile.TensorBytes("uint8", (1000,), values, 1000),
            tensorfile.TensorBytes("uint8", (7,), b"\7" * 7, 7),
        ],
    )
    draft.add_bytes("shard-00001/notes.json", b'{"n": 1}')
    return draft.commit(
        manifest_of(
            commit * 10,
            position=Position(0, 0, 0, commit),
            generation=generation,
            commit=commit,
            parent=parent,
            world_size=3,
            reference_world=3,
            global_batch=48,
            files=draft.files,
            metrics=metrics,
        )
    )


def read(path):
    manifest = checkpoint.verify(path)
    data = bytearray((path / manifest.files[0].path).read_bytes())
    tree, blobs = tensorfile.parse(data, str(path))
    return tree, [bytes(blob.data) for blob in blobs]


def test_what_is_saved_is_listed_verified_and_read_back(tmp_path):
    path = save(tmp_path / "store", 1, loss=0.5)
    (one,) = checkpoint.list_checkpoints(tmp_path / "store")
    assert one.path == path and one.manifest.metrics == {"loss": 0.5}
    assert read(path) == ({"step": 1}, [b"\1" * 1000, b"\7" * 7])
    assert checkpoint.newest_valid(tmp_path / "store").path == path


def test_a_directory_that_does_not_exist_is_empty(tmp_path):
    assert checkpoint.list_checkpoints(tmp_path / "none") == []
    assert checkpoint.newest_valid(tmp_path / "none") is None
    with pytest.raises(CheckpointNotFound):
        checkpoint.verify(tmp_path / "none")


def test_a_name_is_never_used_twice(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(OSError, match=r"exists|not empty"):
        save(tmp_path, 1)
    assert checkpoint.newest_valid(tmp_path).manifest.commit == 1


def test_every_flipped_bit_is_found(tmp_path):
    path = save(tmp_path, 1)
    rng = random.Random(7)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    assert len(files) == 3
    for _ in range(200):
        file = rng.choice(files)
        good = file.read_bytes()
        broken = bytearray(good)
        broken[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        file.write_bytes(broken)
        with pytest.raises(CheckpointCorrupt):
            checkpoint.verify(path)
        file.write_bytes(good)
    checkpoint.verify(path)


@pytest.mark.parametrize("damage", ["truncate", "empty", "delete", "swap", "extend"])
def test_damaged_files_are_found_and_the_parent_is_taken(tmp_path, damage):
    first = save(tmp_path, 1)
    second = save(tmp_path, 2, parent=first.name)
    file = second / "shard-00000/state.tensors"
    if damage == "truncate":
        os.truncate(file, 500)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "delete":
        file.unlink()
    elif damage == "swap":
        file.write_bytes((first / "shard-00000/state.tensors").read_bytes())
    else:
        file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(CheckpointCorrupt):
        checkpoint.verify(second)
    assert checkpoint.newest_valid(tmp_path).path == first


def test_without_digests_the_swapped_file_would_load(tmp_path):
    """The negative control: the format alone does not notice."""
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    swapped = bytearray((first / "shard-00000/state.tensors").read_bytes())
    tree, _ = tensorfile.parse(swapped, str(second))
    assert tree == {"step": 1}


def test_a_manifest_moved_to_another_directory_is_refused(tmp_path):
    path = save(tmp_path, 1)
    path.rename(tmp_path / "step-00000099-00000001")
    listing = checkpoint.scan(tmp_path)
    assert not listing.good and "manifest names" in next(iter(listing.bad.values()))


def test_quarantine_takes_it_out_of_every_list(tmp_path):
    path = save(tmp_path, 1)
    moved = checkpoint.quarantine(path, "0000aaaa")
    listing = checkpoint.scan(tmp_path)
    assert (listing.good, listing.bad, listing.quarantined) == ((), {}, (moved,))


def test_a_kill_at_any_operation_leaves_the_old_one_or_the_new_one(tmp_path):
    """A real SIGKILL in a real process before each operation of a save with retention."""
    counting = Watched(lambda n, name: None)
    store = tmp_path / "count"
    _save_over_two(store, counting)
    assert counting.count > 20
    outcomes = set()
    for at in range(1, counting.count + 1):
        store = tmp_path / str(at)
        _killed(lambda store=store, at=at: _save_over_two(store, Watched(_kill_at(at))))
        newest = checkpoint.newest_valid(store)
        assert newest is not None
        commit = newest.manifest.commit
        assert read(newest.path) == ({"step": commit}, [bytes([commit]) * 1000, b"\7" * 7])
        outcomes.add(commit)
        checkpoint.clean_debris(store)
        assert not checkpoint.scan(store).debris
        assert checkpoint.newest_valid(store).manifest.commit == commit
    assert outcomes == {2, 3}


def _save_over_two(store, disk):
    first = save(store, 1)
    second = save(store, 2, parent=first.name)
    save(store, 3, disk, parent=second.name)
    checkpoint.retain(store, Keep(1), disk)


def _kill_at(at):
    def now(count, name):
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return now


def _killed(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_written_in_place_a_kill_would_leave_half_a_checkpoint(tmp_path):
    """The negative control: the same kills without the draft directory do damage."""

    class InPlace(Watched):
        def rename(self, source, target):
            raise AssertionError("not reached")

    def write_in_place(store, disk):
        path = save(store, 1)
        manifest = (path / "MANIFEST.json").read_bytes()
        (path / "shard-00000/state.tensors").unlink()
        tensorfile.write_pieces(disk, path, "shard-00000/state.tensors", [b"\2" * 500, b"\2" * 500])
        assert manifest

    for at in range(1, 4):
        store = tmp_path / str(at)
        _killed(lambda store=store, at=at: write_in_place(store, InPlace(_kill_at(at))))
        assert checkpoint.newest_valid(store) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_refuses_loses_nothing(tmp_path, code):
    def refuse_at(at):
        def now(count, name):
            if count == at and name != "remove_tree":
                raise OSError(code, os.strerror(code))

        return now

    counting = Watched(lambda n, name: None)
    save(tmp_path / "count", 1, counting)
    for at in range(1, counting.count):
        store = tmp_path / f"{code}-{at}"
        first = save(store, 1)
        with pytest.raises(OSError, match=r"\["):
            save(store, 2, Watched(refuse_at(at)), parent=first.name)
        assert checkpoint.newest_valid(store).manifest.commit in (1, 2)


def test_retention_keeps_the_last_the_best_and_never_the_only_valid_one(tmp_path):
    parent = None
    for commit, value in enumerate([0.1, 0.9, 0.5, 0.4, 0.3], start=1):
        parent = save(tmp_path, commit, parent=parent and parent.name, acc=value)
    gone = checkpoint.retain(tmp_path, Keep(2, Best("acc")))
    assert [one.commit for one in gone] == [1, 3]
    (parent / "shard-00000/state.tensors").write_bytes(b"rot")
    assert checkpoint.retain(tmp_path, Keep(1)) == []
    assert len(checkpoint.list_checkpoints(tmp_path)) == 3


def test_trees_and_offsets_survive_any_sizes(tmp_path):
    sizes = [0, 1, 63, 64, 65, 1000]
    blobs = [tensorfile.TensorBytes("uint8", (n,), os.urandom(n), n) for n in sizes]
    pieces = tensorfile.lay_out({"a": [1, None]}, blobs)
    tensorfile.write_pieces(checkpoint.Disk(), tmp_path, "x", pieces)
    tree, back = tensorfile.parse(bytearray((tmp_path / "x").read_bytes()), "x")
    assert tree == {"a": [1, None]}
    assert [bytes(b.data) for b in back] == [b.data for b in blobs]


@pytest.mark.parametrize("data", [b"", b"PHXTENS1", b"PHXTENS1" + b"\xff" * 8, b"\x80\x04K\x01."])
def test_what_is_not_a_tensor_file_is_refused(data):
    with pytest.raises(CheckpointCorrupt):
        tensorfile.parse(bytearray(data), "file")


def test_the_digest_falls_back_to_the_standard_library(tmp_path):
    from phalanx.checkpoint.digest import Digest, digest_of

    slow = Digest("blake2b-128")
    slow.update(b"abc")
    assert slow.text.startswith("blake2b-128:")
    assert digest_of(b"abc", like=slow.text) == slow.text
    with pytest.raises(ValueError, match="md5"):
        digest_of(b"abc", like="md5:00")


class Forgetful(checkpoint.Disk):
    """A server that answers `done` and forgets: the rename, what a file held, or how long it was."""

    def __init__(self, what):
        self.what = what

    def rename(self, source, target):
        if self.what == "rename":
            return
        super().rename(source, target)
        if self.what == "manifest":
            (target / "MANIFEST.json").write_bytes(b"")
        elif self.what == "file":
            os.truncate(next(one for one in target.rglob("*") if one.suffix == ".tensors"), 10)
        elif self.what == "all":
            shutil.rmtree(target)


@pytest.mark.parametrize("what", ["rename", "manifest", "file", "all"])
def test_a_server_that_forgets_what_it_confirmed_is_a_failed_save(tmp_path, what):
    gang = ThreadGang(tmp_path, 2, lambda rank: Forgetful(what))
    gang.save(1)
    assert gang.wait() == [False, False]
    said = gang.reports[0].records[0]
    assert "could not be saved" in said["message"] and said["code"] == "save_failed"
    gang.save(2, "asked")  # the answer to the request counts it
    assert gang.wait() == [False, False]
    assert "code" not in gang.reports[0].records[-1] or not gang.reports[0].records[-1]["code"]
    assert checkpoint.newest_valid(tmp_path) is None


def test_without_reading_it_back_the_loss_would_be_a_success(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.CheckpointWriter, "_see", lambda draft, content: None)
    gang = ThreadGang(tmp_path, 2, lambda rank: Forgetful("rename"))
    gang.save(1)
    assert gang.wait() == [True, True]
    assert checkpoint.newest_valid(tmp_path) is None
