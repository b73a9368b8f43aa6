"""Sharded saves by several ranks: partition, commit, crash, corruption, fallback, older versions."""

import errno
import json
import os
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch

from integration.thread_gang import ThreadGang, trained
from phalanx import checkpoint
from phalanx.checkpoint import tensorfile
from phalanx.core.training.checkpoints import FileEntry, Keep
from phalanx.errors import CheckpointCorrupt
from phalanx.train.state import checkpoint_reader, export, sharding, tree
from phalanx.train.state.resuming import Resumption
from phalanx.train.state.staging import NoStaging, Staging

pytestmark = pytest.mark.integration

SAMPLES = Path(__file__).parent / "samples"


def local(rank):
    return checkpoint.Disk()


def content(path):
    """The whole state of a checkpoint as plain tensors."""
    state, rng = checkpoint_reader.read_state(path, checkpoint.verify(path))
    return tree.cloned(state), rng


WIDE = 12_000  # a state of 25 MB: the parts of three ranks have several chunks


def holds(model, fill):
    """Whether a model is, bit for bit, what it was after `set(fill)`."""
    expected = trained(fill, model[0].in_features)[0].state_dict()
    return all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def same(state, fill):
    model, opt = trained(fill, state["models"][0]["0.weight"].shape[1])
    assert all(torch.equal(state["models"][0][k], v) for k, v in model.state_dict().items())
    for at, values in opt.state_dict()["state"].items():
        for name, value in values.items():
            assert torch.equal(state["optimizers"][0]["state"][at][name], value)
    return True


# -- who writes what, and how it is found again ----------------------------------------------------


def parts_on_disk(tmp_path, leaves, world):
    common = frozenset(leaf.data_ptr() for leaf in leaves if leaf.numel())
    files = []
    for rank in range(world):
        pieces = sharding.pieces_of(leaves, common, (rank, world))
        blobs = [tree.blob_of(piece.tensor, piece.part) for piece in pieces]
        entry = tensorfile.write_pieces(
            checkpoint.Disk(), tmp_path, f"{world}-{rank}", tensorfile.lay_out({}, blobs)
        )
        source = checkpoint.VerifiedFile(tmp_path, entry)
        files.append((source, tensorfile.read_header(source, "x")[1]))
    return files


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_parts_of_any_number_of_ranks_are_the_whole_and_any_box_of_it(tmp_path, world):
    rng = random.Random(world)
    generator = torch.Generator().manual_seed(world)
    shapes = [(), (0, 4), (7,), (100_003,), (1, 30_000), (517, 129), (33, 40, 50), (3, 9000)]
    leaves = [torch.randn(shape, generator=generator) for shape in shapes]
    leaves.append(torch.randn(300, 200, generator=generator).to(torch.bfloat16))
    files = parts_on_disk(tmp_path, leaves, world)
    found = sharding.stored_tensors(files, "x")
    sizes = [sum(row.size_bytes for row in rows) for _, rows in files]
    assert max(sizes) <= min(sizes) + 300_000
    for number, leaf in enumerate(leaves):
        assert torch.equal(found[number].read(), leaf)
        for _ in range(5):
            start = [rng.randrange(max(n, 1)) for n in leaf.shape]
            size = [rng.randrange(n - at + 1) for n, at in zip(leaf.shape, start, strict=True)]
            box = tuple(slice(at, at + n) for at, n in zip(start, size, strict=True))
            assert torch.equal(found[number].read_region(size, start), leaf[box])


def test_a_part_that_is_missing_is_noticed(tmp_path):
    leaves = [torch.randn(500, 100)]
    files = parts_on_disk(tmp_path, leaves, 3)
    with pytest.raises(CheckpointCorrupt, match="missing"):
        sharding.stored_tensors(files[:2], "x")[0].read()
    with pytest.raises(CheckpointCorrupt, match="overlap"):
        sharding.stored_tensors([*files, files[1]], "x")[0].read()


def test_a_file_is_read_in_checked_pieces(tmp_path):
    size = 9_000_001
    data = random.Random(3).randbytes(size)
    entry = tensorfile.write_pieces(checkpoint.Disk(), tmp_path, "x", [data])
    file = checkpoint.VerifiedFile(tmp_path, entry)
    assert file.num_chunks == 3
    for at, num in [(0, size), (0, 1), (size - 1, 1), (4_194_303, 2), (5, 8_500_000), (7, 0)]:
        into = bytearray(num)
        file.read_into(at, memoryview(into))
        assert into == data[at : at + num]
    broken = bytearray(data)
    broken[5_000_000] ^= 1
    (tmp_path / "x").write_bytes(broken)
    file.read_into(0, memoryview(bytearray(4_000_000)))
    with pytest.raises(CheckpointCorrupt, match="digest"):
        file.read_into(4_000_000, memoryview(bytearray(300_000)))
    with pytest.raises(CheckpointCorrupt, match="ends"):
        file.read_into(size, memoryview(bytearray(1)))
    swapped = FileEntry("x", size, entry.digest, tuple(reversed(entry.chunks)))
    with pytest.raises(CheckpointCorrupt, match="digests of the chunks"):
        checkpoint.VerifiedFile(tmp_path, swapped)


# -- a gang's saves --------------------------------------------------------------------------------


def test_every_rank_writes_its_part_and_all_open_the_whole(tmp_path):
    gang = ThreadGang(tmp_path, 3, local)
    gang.set(7)
    assert gang.save(1) == [True] * 3 and gang.wait() == [True] * 3
    (one,) = checkpoint.list_checkpoints(tmp_path)
    assert len(one.manifest.files) == 3
    sizes = [entry.size_bytes for entry in one.manifest.files]
    assert max(sizes) < 1.3 * min(sizes)
    state, rng = content(one.path)
    assert same(state, 7) and state["state"] == {"rank": 0}
    assert rng == (b"\0\1", b"\1\1", b"\2\1")
    assert [restored.path for restored in gang.open()] == [one.path] * 3
    for world in (1, 2, 5):
        fewer = ThreadGang(tmp_path, world, local).open()
        assert all(same(tree.cloned(one.state), 7) for one in fewer)


class Slow:
    """A disk on which no file is begun before `go` is set."""

    def __init__(self, go):
        self._go, self._disk = go, checkpoint.Disk()

    def __getattr__(self, name):
        if name == "create":
            assert self._go.wait(60)
        return getattr(self._disk, name)


class InPlace(Staging):
    """The negative control: no copy."""

    take = NoStaging.take


@pytest.mark.parametrize(("staging", "kept"), [(Staging, True), (InPlace, False)])
def test_training_on_changes_nothing_in_a_save_under_way(tmp_path, staging, kept):
    go = threading.Event()
    gang = ThreadGang(tmp_path, 2, lambda rank: Slow(go), staging=staging)
    gang.set(3)
    gang.save(1)
    gang.set(1000)
    go.set()
    assert gang.wait() == [True, True]
    state, _ = content(checkpoint.list_checkpoints(tmp_path)[0].path)
    model, _ = trained(3)
    name, value = next(iter(model.state_dict().items()))
    assert torch.equal(state["models"][0][name], value) is kept


def test_a_rank_whose_disk_refuses_fails_the_save_for_all_and_says_why(tmp_path):
    class Full(checkpoint.Disk):
        def write(self, fd, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    gang = ThreadGang(tmp_path, 3, lambda rank: Full() if rank == 2 else checkpoint.Disk())
    gang.save(1)
    assert gang.wait() == [False] * 3
    (warning,) = gang.reports[0].records
    assert "rank 2" in warning["message"] and "No space" in warning["message"]
    assert list(tmp_path.iterdir()) == []


def test_parts_that_lie_on_another_machine_are_not_committed(tmp_path):
    class Elsewhere(checkpoint.Disk):
        def create(self, path):
            return super().create(tmp_path / "elsewhere")

    gang = ThreadGang(
        tmp_path / "store", 2, lambda rank: Elsewhere() if rank else checkpoint.Disk()
    )
    gang.save(1)
    assert gang.wait() == [False] * 2
    assert checkpoint.list_checkpoints(tmp_path / "store") == []


def test_ranks_that_hold_different_tensors_fall_back_to_rank_0(tmp_path):
    gang = ThreadGang(tmp_path, 2, local)
    model = torch.nn.Linear(500, 300)
    gang.pairs[1] = (model, torch.optim.SGD(model.parameters(), lr=1))
    gang.savers[1].watch([model], [], "ddp")
    gang.save(1)
    assert gang.wait() == [False, False]
    assert "do not fit" in gang.reports[0].records[0]["message"]
    gang.save(2)
    assert gang.wait() == [True, True]
    state, _ = content(checkpoint.list_checkpoints(tmp_path)[0].path)
    assert same(state, 0)


def test_a_bad_byte_anywhere_sends_all_ranks_to_the_checkpoint_before(tmp_path):
    gang = ThreadGang(tmp_path, 3, local)
    for step in (1, 2):
        gang.set(step)
        gang.save(step)
        assert all(gang.wait())
    newest, older = checkpoint.list_checkpoints(tmp_path)
    file = newest.path / "shard-00002/state.tensors"
    broken = bytearray(file.read_bytes())
    broken[len(broken) // 2] ^= 8
    file.write_bytes(broken)
    opened = ThreadGang(tmp_path, 3, local)
    assert [one.path for one in opened.open()] == [older.path] * 3
    (record,) = opened.reports[0].records
    assert record["k"] == "quarantined" and "digest" in record["why"]
    assert all(holds(model, 1) for model, _ in opened.pairs)


def rot(path):
    file = path / "shard-00001/state.tensors"
    broken = bytearray(file.read_bytes())
    broken[-100] ^= 1
    file.write_bytes(broken)


def test_the_only_checkpoint_is_checked_before_anything_is_overwritten(tmp_path):
    saved = ThreadGang(tmp_path, 2, local, width=WIDE)
    saved.set(1)
    saved.save(1)
    assert all(saved.wait())
    rot(checkpoint.list_checkpoints(tmp_path)[0].path)
    gang = ThreadGang(tmp_path, 2, local, width=WIDE)
    gang.set(50)
    assert gang.open() == [None, None]
    assert all(holds(model, 50) for model, _ in gang.pairs)


def test_when_no_checkpoint_can_be_read_to_its_end_the_start_fails_and_the_next_begins_anew(
    tmp_path,
):
    saved = ThreadGang(tmp_path, 2, local, width=WIDE)
    for step in (1, 2):
        saved.save(step)
        assert all(saved.wait())
    for one in checkpoint.list_checkpoints(tmp_path):
        rot(one.path)
    gang = ThreadGang(tmp_path, 2, local, width=WIDE)
    with pytest.raises(CheckpointCorrupt, match="no other checkpoint"):
        gang.open()
    assert ThreadGang(tmp_path, 2, local, width=WIDE).open() == [None, None]


def test_without_the_vote_half_overwritten_weights_would_be_trained_on(tmp_path):
    """The negative control of reading in place."""

    class Content(Resumption):
        def settle(self):
            return True

    saved = ThreadGang(tmp_path, 2, local, width=WIDE)
    for step in (1, 2):
        saved.set(step)
        saved.save(step)
        assert all(saved.wait())
    rot(checkpoint.list_checkpoints(tmp_path)[0].path)
    gang = ThreadGang(tmp_path, 2, local, width=WIDE, resumption=Content)
    gang.open()
    assert not all(holds(model, 1) for model, _ in gang.pairs)


class Killing:
    """A disk, shared by all ranks, that kills the process before its n-th operation."""

    def __init__(self, at):
        self.at, self.count = at, 0
        self._lock, self._disk = threading.Lock(), checkpoint.Disk()

    def __getattr__(self, name):
        with self._lock:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self._disk, name)


def two_saves(store, disk):
    gang = ThreadGang(store, 2, lambda rank: disk, keep=Keep(1))
    for step in (1, 2):
        gang.set(step)
        gang.save(step)
        assert all(gang.wait())


@pytest.mark.proof
def test_a_kill_at_every_operation_of_any_rank_leaves_a_whole_checkpoint(tmp_path):
    kill_at_every(tmp_path, 1)


def test_a_kill_at_some_operation_of_any_rank_leaves_a_whole_checkpoint(tmp_path):
    kill_at_every(tmp_path, 9)


def kill_at_every(tmp_path, stride):
    counting = Killing(0)
    two_saves(tmp_path / "count", counting)
    assert counting.count > 40
    outcomes = set()
    for at in range(counting.count, 0, -stride):
        store = tmp_path / str(at)
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(1)  # the parent's other threads are not here
                two_saves(store, Killing(at))
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        newest = checkpoint.newest_valid(store)
        outcomes.add(newest and newest.manifest.step)
        if newest is not None:
            state, rng = content(newest.path)
            assert same(state, newest.manifest.step) and len(rng) == 2
    assert outcomes == {None, 1, 2}


@pytest.mark.proof
@pytest.mark.parametrize("part", range(10))
def test_500_corruptions_are_all_found_and_the_one_before_is_used(tmp_path, part):
    corruptions(tmp_path, 40, WIDE, part)
    corruptions(tmp_path, 10, 130, part)


def test_corruptions_are_all_found_and_the_one_before_is_used(tmp_path):
    corruptions(tmp_path, 3, WIDE)
    corruptions(tmp_path, 6, 130)


def corruptions(tmp_path, count, width, seed=0):
    good = tmp_path / f"good-{width}"
    gang = ThreadGang(good, 3, local, width=width)
    for step in (1, 2):
        gang.set(step)
        gang.save(step)
        assert all(gang.wait())
    rng = random.Random(f"{seed}-{width}")
    for number in range(count):
        store = tmp_path / str(number)
        shutil.copytree(good, store, copy_function=os.link)
        newest, older = checkpoint.list_checkpoints(store)
        files = sorted(path for path in newest.path.rglob("*") if path.is_file())
        damage(rng, rng.choice(files), files, older.path, newest.path)
        again = ThreadGang(store, 2, local, width=width)
        opened = again.open()
        assert [one.path for one in opened] == [older.path] * 2
        assert same(tree.cloned(opened[1].state), 1)
        assert all(holds(model, 1) for model, _ in again.pairs)
        assert again.reports[0].records[0]["k"] == "quarantined"
        shutil.rmtree(store)


def damage(rng, file, files, older, newest):
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    kind = rng.choice(["flip", "truncate", "zero", "swap", "older", "delete"])
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del data[at:]
    elif kind == "zero":
        size = min(4096, len(data) - at)
        data[at : at + size] = bytes(size) if any(data[at : at + size]) else b"\1" * size
    elif kind == "swap":
        other = rng.choice([one for one in files if one != file])
        data = bytearray(other.read_bytes())
    elif kind == "older":
        other = older / file.relative_to(newest)
        data = bytearray(other.read_bytes())
    else:
        file.unlink()
        return
    file.unlink()  # its bytes are shared with other copies
    file.write_bytes(data)


# -- checkpoints of earlier releases ---------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_checkpoint_of_an_earlier_release_loads_bit_for_bit(tmp_path, version):
    (path,) = (SAMPLES / version).iterdir()
    state, rng = content(path)
    expected = json.loads((SAMPLES / f"{version}.expected.json").read_text())
    assert {name: one.tolist() for name, one in state["models"][0].items()} == expected
    assert state["state"] == {"note": ("a", 1)} and len(rng) == 1 and len(rng[0]) > 100
    assert state["schedulers"][0]["state"]["last_epoch"] == 4
    assert set(state["optimizers"][0]["state"]["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


# -- audits, retention and other formats -----------------------------------------------------------


def test_a_scrub_sets_aside_what_rotted_and_nothing_else(tmp_path):
    gang = ThreadGang(tmp_path, 2, local)
    for step in (1, 2, 3):
        gang.save(step)
        assert all(gang.wait())
    newest, middle, oldest = checkpoint.list_checkpoints(tmp_path)
    file = middle.path / "shard-00001/state.tensors"
    broken = bytearray(file.read_bytes())
    broken[-1] ^= 1
    file.write_bytes(broken)
    found = checkpoint.scrub(tmp_path, "0badcafe")
    assert found.valid == (newest.path, oldest.path) and list(found.bad) == [middle.path]
    assert found.set_aside[middle.path].is_dir() and not middle.path.exists()
    again = checkpoint.scrub(tmp_path, "1badcafe")
    assert again.valid == found.valid and not again.bad


def test_retention_by_every_and_age(tmp_path):
    gang = ThreadGang(tmp_path, 1, local)
    for step in range(1, 7):
        gang.save(step)
        assert all(gang.wait())
    found = {one.manifest.step: one.manifest for one in checkpoint.list_checkpoints(tmp_path)}
    now = found[4].created_at + 10_000_000
    gone = checkpoint.retain(tmp_path, Keep(every=2, age_s=10.0), now=now)
    assert [one.step for one in gone] == [1, 3]
    gone = checkpoint.retain(tmp_path, Keep(last=1, every=4))
    assert [one.step for one in gone] == [2, 5]
    assert Keep.from_json({"last": 1, "every": 4, "age_s": 60}) == Keep(1, None, 4, 60)
    with pytest.raises(ValueError, match="at least 1"):
        Keep(every=0)


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    meta = header.pop("__metadata__")
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
    found = {}
    for name, row in header.items():
        lo, hi = (8 + size + at for at in row["data_offsets"])
        raw = torch.frombuffer(bytearray(data[lo:hi]), dtype=kinds[row["dtype"]])
        found[name] = raw.reshape(row["shape"])
    return meta, found


def test_weights_are_exported_as_safetensors_and_alone(tmp_path, capsys):
    gang = ThreadGang(tmp_path / "store", 3, local)
    gang.set(4)
    gang.save(1)
    assert all(gang.wait())
    (one,) = checkpoint.list_checkpoints(tmp_path / "store")
    model, _ = trained(4)
    assert export.main([str(one.path), str(tmp_path / "m.safetensors")]) == 0
    meta, found = read_safetensors(tmp_path / "m.safetensors")
    assert meta["step"] == "1" and list(found) == list(model.state_dict())
    assert all(torch.equal(found[key], value) for key, value in model.state_dict().items())
    assert export.main([str(one.path), str(tmp_path / "h.safetensors"), "--dtype=bfloat16"]) == 0
    _, half = read_safetensors(tmp_path / "h.safetensors")
    assert all(torch.equal(half[k], v.bfloat16()) for k, v in model.state_dict().items())
    assert export.main([str(one.path), str(tmp_path / "m.pt")]) == 0
    plain = torch.load(tmp_path / "m.pt", weights_only=True)
    assert list(plain) == list(model.state_dict())
    assert all(torch.equal(plain[key], value) for key, value in model.state_dict().items())
    assert export.main([str(one.path), str(tmp_path / "weights")]) == 0
    (small,) = checkpoint.list_checkpoints(tmp_path / "weights")
    state, _ = content(small.path)
    assert all(torch.equal(state["models"][0][k], v) for k, v in model.state_dict().items())
    assert set(state) == {"models"}
    file = one.path / "shard-00000/state.tensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert export.main([str(one.path), str(tmp_path / "x.safetensors")]) == 1
    assert not (tmp_path / "x.safetensors").exists() and "bytes" in capsys.readouterr().err
