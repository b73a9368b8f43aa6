"""Ranks whose nodes share no folder: checkpoints are committed in the object store, part by part."""

import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from integration.thread_gang import Meeting, ThreadChannel, ThreadGang, on_threads
from phalanx import checkpoint
from phalanx.checkpoint import compression, remote
from phalanx.checkpoint.digest import CHUNK_BYTES
from phalanx.checkpoint.encryption import AesGcmEncryption, Encryption, EncryptionKey
from phalanx.checkpoint.remote_store import ObjectStore, open_store
from phalanx.checkpoint.store_first import operations, transfers
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.core.training.checkpoints import Keep
from phalanx.core.training.guards import GuardState, Undo
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
    CheckpointUnavailable,
    UserError,
)
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.gang.report import NoReport
from phalanx.train.gang.shared_folder import strangers
from phalanx.train.state.staging import NoStaging
from phalanx.train.state.storage import CheckpointStorage, storage_for
from phalanx.train.step.guard_state import GuardStateFile

pytest.importorskip("obstore")
pytestmark = pytest.mark.integration
WORLD = 2
HANG_GUARD_S = 60.0


@pytest.fixture
def nodes(tmp_path):
    """Gangs with a folder for each rank; their upload processes end with the test."""
    made = []

    def use(
        generation=0,
        keep=None,
        encryption=None,
        packing="none",
        width=130,
        world=WORLD,
        wait_s=None,
    ):
        tiers = []
        for rank in range(world):
            folder = tmp_path / f"node{rank}"
            told = []
            tier = StoreFirstTier(
                f"file://{tmp_path}/far",
                folder,
                keep or Keep(),
                lambda kind, said, told=told: told.append((kind, said)),
                (1, generation),
            )
            tier.told = told
            tiers.append(tier)
        made.extend(tiers)

        def storage(rank):
            packed = compression.compression_for(packing)
            return CheckpointStorage(tiers[rank], encryption or Encryption(), packed, tiers[rank])

        policy = {} if wait_s is None else {"checkpoint": CheckpointPolicy(wait_s=wait_s)}
        gang = ThreadGang(
            lambda rank: tmp_path / f"node{rank}",
            world,
            lambda _rank: checkpoint.Disk(),
            keep,
            NoStaging,
            width=width,
            storage=storage,
            **policy,
            attempt=1,
            generation=generation,
        )
        gang.tiers = tiers
        return gang

    yield use
    for tier in made:
        tier.leave()


def far(tmp_path):
    return open_store(f"file://{tmp_path}/far", {})


def weights(gang):
    return [[one.detach().clone() for one in model.parameters()] for model, _ in gang.pairs]


def require_equal(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def committed(gang):
    return [one["step"] for one in gang.reports[0].records if one["k"] == "checkpoint"]


def warnings(gang):
    return [one["message"] for note in gang.reports for one in note.records if "message" in one]


KEYS = AesGcmEncryption([EncryptionKey(bytes(range(32)))])


@pytest.mark.parametrize(
    ("encryption", "packing"),
    [(None, "none"), pytest.param(KEYS, "zstd", marks=pytest.mark.extras)],
)
def test_ranks_with_folders_of_their_own_commit_and_resume(nodes, tmp_path, encryption, packing):
    options = {"encryption": encryption, "packing": packing}
    gang = nodes(**options)
    assert gang.open() == [None] * WORLD
    gang.set(3.0)
    expected = weights(gang)
    assert gang.save(7) == [True] * WORLD
    assert committed(gang) == [7]
    assert [one["name"] for one in gang.reports[0].records if one["k"] == "uploaded"]
    assert list(remote.look(far(tmp_path)).good) and not list(tmp_path.glob("node*/*.tmp"))
    for node in (0, 1):  # every node has lost its disk, or none of it
        again = nodes(generation=node + 1, **options)
        again.set(9.0)
        assert [one.manifest.step for one in again.open()] == [7] * WORLD
        require_equal(weights(again), expected)
        for rank in range(node * WORLD):
            shutil.rmtree(tmp_path / f"node{rank}", ignore_errors=True)


def test_a_damaged_near_copy_is_fetched_again(nodes, tmp_path):
    gang = nodes()
    gang.open()
    gang.set(3.0)
    expected = weights(gang)
    gang.save(7)
    for path in tmp_path.glob("node*/*.near/*/state.tensors"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    again = nodes(generation=1)
    again.set(9.0)
    again.open()
    require_equal(weights(again), expected)
    assert not warnings(again)


@pytest.mark.extras
def test_damage_in_the_store_leads_to_the_checkpoint_before(nodes, tmp_path):
    gang = nodes()
    gang.open()
    gang.set(3.0)
    expected = weights(gang)
    gang.save(7)
    gang.set(4.0)
    gang.save(8)
    for path in tmp_path.glob("far/step-00000008-*/shard-00001/state.tensors"):
        data = bytearray(path.read_bytes())
        data[-200] ^= 1
        path.write_bytes(data)
    for rank in range(WORLD):
        shutil.rmtree(tmp_path / f"node{rank}")
    again = nodes(generation=1)
    assert [one.manifest.step for one in again.open()] == [7] * WORLD
    require_equal(weights(again), expected)
    assert any("an older checkpoint is tried" in one for one in warnings(again))


def test_a_generation_that_was_replaced_cannot_commit(nodes, tmp_path):
    old, new = nodes(generation=1), nodes(generation=2)
    old.open()
    new.open()
    new.set(4.0)
    assert new.save(5) == [True] * WORLD
    assert old.save(50) == [False] * WORLD
    assert any("a newer generation" in one for one in warnings(old))
    assert [one.step for one in remote.look(far(tmp_path)).good.values()] == [5]


def test_retention_in_the_store_and_what_failed_saves_left(nodes, tmp_path):
    gang = nodes(keep=Keep(last=1))
    gang.open()
    store = far(tmp_path)
    store.put("step-00000001-00000bad/shard-00001/state.tensors", lambda: [b"half"], 4)
    for step in (1, 2, 3):
        assert gang.save(step) == [True] * WORLD
    gang.tiers[0].finish(HANG_GUARD_S)
    assert [one.step for one in remote.look(store).good.values()] == [3]
    removed = [said["path"] for kind, said in gang.tiers[0].told if kind == "removed"]
    assert len(removed) == 2 and all(one.startswith("file://") for one in removed)
    nodes(generation=1).open()
    assert not remote.look(store).debris
    assert len(list((tmp_path / "node1").iterdir())) == 1  # one near copy is enough


@pytest.mark.extras
def test_one_rank_that_cannot_upload_fails_the_save_for_all(nodes, tmp_path, monkeypatch):
    gang = nodes()
    gang.open()

    def broken(*_given):
        raise CheckpointUnavailable("no route to the store")

    monkeypatch.setattr(gang.tiers[1], "put", broken)
    assert gang.save(4) == [False] * WORLD
    gang.tiers[0].finish(HANG_GUARD_S)
    assert not remote.look(far(tmp_path)).objects
    assert any("rank 1: no route to the store" in one for one in warnings(gang))


@pytest.mark.extras
def test_an_upload_whose_process_dies_is_tried_again(nodes, tmp_path):
    gang = nodes()
    gang.open()
    assert gang.save(3) == [True] * WORLD
    gang.tiers[1]._child.kill()
    assert gang.save(4) == [True] * WORLD


def test_a_rank_fetches_only_what_it_reads(tmp_path, nodes):
    gang = nodes()
    gang.open()
    big = 5 * CHUNK_BYTES
    tier = gang.tiers[0]
    entry = tier.put(
        "step-00000001-00000001", "a/b", lambda: [bytes(range(256)) * (big // 256)], big
    )
    shutil.rmtree(tier.near("step-00000001-00000001"))
    file = gang.tiers[1].open_file("step-00000001-00000001", entry)
    into = memoryview(bytearray(10))
    file.read_into(3 * CHUNK_BYTES + 5, into)
    assert bytes(into) == bytes(range(5, 15))
    assert file.path.stat().st_blocks * 512 < 2 * CHUNK_BYTES


@pytest.mark.parametrize("undone", [True, False])
def test_a_rolled_back_step_is_not_resumed_from_its_copy(nodes, tmp_path, undone):
    gang = nodes()
    gang.open()
    for step in (3, 8):
        assert gang.save(step) == [True] * WORLD
    tier = gang.tiers[0] if undone else None  # without the store the guard does not hold
    info = RankInfo(attempt=1, generation=1)
    store = GuardStateFile(tmp_path / "node0", info, LocalChannel(), NoReport(), tier)
    store.keep(GuardState(undo=Undo(1, 0, 5)))
    assert store.open().undo is None
    left = sorted(one.step for one in remote.look(far(tmp_path)).good.values())
    assert left == ([3] if undone else [3, 8])


def test_the_guard_state_is_found_again_on_another_node(nodes, tmp_path):
    def store(generation, node):
        tier = nodes(generation).tiers[0]
        tier.claim()
        info = RankInfo(attempt=1, generation=generation)
        return GuardStateFile(tmp_path / f"node{node}", info, LocalChannel(), NoReport(), tier)

    first = store(0, node=0)
    assert first.open() == GuardState()
    first.keep(GuardState(halvings=2))
    second = store(1, node=1)
    assert second.open().halvings == 2
    second.keep(GuardState(halvings=3))
    assert store(2, node=0).open().halvings == 3  # not what is left on the node
    with pytest.raises(OSError, match="a newer generation"):
        first.keep(GuardState())


@pytest.mark.parametrize("failures", [1, 10_000])
def test_a_store_that_is_away_while_ranks_read_is_waited_for(nodes, monkeypatch, failures):
    gang = nodes()
    gang.open()
    gang.set(3.0)
    expected = weights(gang)
    gang.save(7)
    again = nodes(generation=1, wait_s=60.0 if failures == 1 else 0.0)
    tier, left = again.tiers[1], [failures]
    manifest = tier.manifest

    def away(name):
        if left[0]:
            left[0] -= 1
            raise CheckpointUnavailable("no route to the store")
        return manifest(name)

    monkeypatch.setattr(tier, "manifest", away)
    if failures > 1:
        with pytest.raises(CheckpointMissing, match="no route to the store"):
            again.open()
        return
    assert [one.manifest.step for one in again.open()] == [7] * WORLD
    require_equal(weights(again), expected)


class Counting:
    """A client that counts its requests for parts and for whole objects."""

    def __init__(self, client, refuses):
        self.client, self.refuses = client, refuses
        self.parts = self.wholes = 0

    def __getattr__(self, name):
        return getattr(self.client, name)

    def get(self, name, *, options=None):
        if options is None:
            self.wholes += 1
            return self.client.get(name)
        self.parts += 1
        if self.refuses:
            raise RuntimeError("Received non-partial response when range requested")
        return self.client.get(name, options=options)


def _copied(downloads, size, ranges):
    got = {}

    def take(at, pieces):
        got[at] = b"".join(pieces)

    downloads.copy("step-00000001-00000001/a", size, ranges, take)
    return got


@pytest.fixture
def object_of_chunks(tmp_path):
    """An object of five chunks and a bit, in a store that counts requests: made by `refuses`."""
    data = random.Random(1).randbytes(5 * CHUNK_BYTES + 100)
    far(tmp_path).put("step-00000001-00000001/a", lambda: [data], len(data))
    return data, lambda refuses: ObjectStore(Counting(far(tmp_path)._client, refuses))


def test_a_server_without_ranges_is_read_in_order_by_one_request(object_of_chunks):
    data, store_that = object_of_chunks
    store = store_that(refuses=True)
    downloads = transfers.Downloads(store)
    chunk, size = CHUNK_BYTES, len(data)
    for ranges in ([(0, chunk)], [(chunk, 2 * chunk), (3 * chunk, 4 * chunk)], [(5 * chunk, size)]):
        found = _copied(downloads, size, ranges)
        assert found == {at: data[at:end] for at, end in ranges}
    assert (store._client.parts, store._client.wholes) == (1, 1)
    assert _copied(downloads, size, [(0, chunk)]) == {0: data[:chunk]}  # from its beginning again
    assert store._client.wholes == 2
    downloads.close()


def test_large_ranges_are_cut_into_requests(object_of_chunks, monkeypatch):
    monkeypatch.setattr(transfers, "REQUEST_BYTES", (CHUNK_BYTES, 2 * CHUNK_BYTES))
    data, store_that = object_of_chunks
    store = store_that(refuses=False)
    found = _copied(transfers.Downloads(store), len(data), [(0, len(data))])
    assert b"".join(found[at] for at in sorted(found)) == data
    assert (store._client.parts, store._client.wholes) == (6, 0)


class SlowDisk(checkpoint.Disk):
    """A disk whose first write waits for `event`."""

    def __init__(self):
        self.event = threading.Event()

    def write(self, fd, data):
        assert self.event.wait(HANG_GUARD_S)
        super().write(fd, data)


def test_what_a_slow_disk_does_not_take_in_time_is_missing(tmp_path):
    disk = SlowDisk()
    copies = transfers.NearCopies(disk)
    near = copies.create(tmp_path / "near" / "a")
    blocks = [bytes([1 + at]) * CHUNK_BYTES for at in range(20)]
    for at, block in enumerate(blocks):
        near.offer(at * CHUNK_BYTES, [memoryview(block)])  # returns although nothing was written
    disk.event.set()
    near.close()
    copies.finish()
    written = (tmp_path / "near" / "a").read_bytes()
    kept = len(written) // CHUNK_BYTES
    assert 0 < kept < len(blocks) and written == b"".join(blocks[:kept])


def test_reads_go_into_memory_and_past_what_is_damaged_near(nodes, tmp_path):
    tier, name = nodes().tiers[0], "step-00000001-00000001"
    data = random.Random(1).randbytes(3 * CHUNK_BYTES)
    entry = tier.put(name, "a", lambda: [data], len(data))
    shutil.rmtree(tier.near(name))
    file, into = tier.open_file(name, entry), bytearray(len(data))
    whole = [
        (0, memoryview(into)[: CHUNK_BYTES + 5]),
        (CHUNK_BYTES + 5, memoryview(into)[CHUNK_BYTES + 5 :]),
    ]
    for damage in (b"", b"x"):  # the first time nothing is near, the second time wrong bytes are
        if damage:
            file.path.write_bytes(damage * len(data))
        into[:] = bytes(len(data))
        file.read_scattered(whole)
        assert into == data


def test_wrong_bytes_in_the_store_are_corrupt(nodes, tmp_path):
    tier, name = nodes().tiers[0], "step-00000001-00000001"
    entry = tier.put(name, "a", lambda: [bytes(CHUNK_BYTES + 9)], CHUNK_BYTES + 9)
    shutil.rmtree(tier.near(name))
    with open(tmp_path / "far" / name / "a", "r+b") as stored:
        stored.seek(CHUNK_BYTES)
        stored.write(b"x")
    into = memoryview(bytearray(CHUNK_BYTES + 9))
    with pytest.raises(CheckpointCorrupt, match=f"bytes {CHUNK_BYTES} to {CHUNK_BYTES + 9}"):
        tier.open_file(name, entry).read_scattered([(0, into)])
    assert bytes(into[:9]) == bytes(9)


def test_many_threads_may_check_one_file(nodes, tmp_path):
    """`verify_share` reads chunks in threads; a tier has one conversation with its process."""
    tier = nodes().tiers[0]
    data = bytes(random.Random(1).randbytes(5 * CHUNK_BYTES))
    entry = tier.put("step-00000001-00000001", "a", lambda: [data], len(data))
    shutil.rmtree(tier.near("step-00000001-00000001"))
    file = tier.open_file("step-00000001-00000001", entry)
    file.prepare([0])
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(file.check, range(5)))
    assert all(file.has_checked(at) for at in range(5))


@pytest.mark.extras
def test_the_parts_of_many_sizes_arrive_whole(nodes, tmp_path):
    tier = nodes().tiers[0]
    for size in (0, 1, CHUNK_BYTES, (8 << 20) + 1, 21 << 20):
        data = bytes(size)
        entry = tier.put("step-00000001-00000001", f"part{size}", lambda data=data: [data], size)
        assert entry.size_bytes == size
        found = far(tmp_path).get(f"step-00000001-00000001/part{size}")
        assert found == data


def test_a_mark_orders_generations():
    assert operations._mark((2, 0)) > operations._mark((1, 12)) > operations._mark((1, 2))


# -- do the ranks share a folder? ----------------------------------------------------------------


def _place(tmp_path, rank, shared, **more):
    folder = tmp_path / ("all" if shared else f"node{rank}")
    return RankInfo(rank=rank, world_size=WORLD, local_world_size=1, checkpoint_dir=folder, **more)


def _agree(tmp_path, shared, **more):
    meeting = Meeting(WORLD)

    def work(rank):
        info = _place(tmp_path, rank, shared, **more)
        return storage_for(info, NoReport(), ThreadChannel(meeting, rank))

    return on_threads(WORLD, work)


def test_one_folder_is_found_to_be_shared(tmp_path):
    assert [one.store_first for one in _agree(tmp_path, shared=True)] == [None] * WORLD
    assert not list((tmp_path / "all").iterdir())


def test_folders_of_their_own_are_refused_without_a_store(tmp_path):
    with pytest.raises(UserError, match="rank 1 does not see the folder of checkpoints") as said:
        _agree(tmp_path, shared=False, attempt=1)
    assert "checkpoint.store" in said.value.hint
    with pytest.raises(CheckpointUnavailable):  # it may be a mount that is late
        _agree(tmp_path, shared=False, attempt=1, generation=1)


def test_with_a_store_they_commit_there(tmp_path):
    policy = CheckpointPolicy(store=f"file://{tmp_path}/far")
    found = _agree(tmp_path, shared=False, checkpoint=policy)
    assert all(one.store_first is not None for one in found)
    found = _agree(tmp_path, shared=True, checkpoint=policy)
    assert [one.store_first for one in found] == [None] * WORLD


def test_ranks_of_one_node_need_no_agreement(tmp_path):
    info = RankInfo(rank=1, world_size=2, local_world_size=2)
    assert strangers(tmp_path, info, None) == []
