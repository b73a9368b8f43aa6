"""Folders as checkpoints: committed whole, verified, kept by the same rules."""

import atexit

import pytest

from phalanx import checkpoint
from phalanx.core.contract import records as reports
from phalanx.errors import SpecInvalid, UserError
from phalanx.train.state import folders
from phalanx.train.state.store_first import store_folders

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "PHALANX_CHECKPOINT_DIR", "PHALANX_REPORT_FILE"):
        monkeypatch.delenv(name, raising=False)


def state(tmp_path, text: str):
    folder = tmp_path / "state"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "a.bin").write_bytes(text.encode() * 100_000)
    (folder / "deep" / "b.txt").write_text(text)
    return folder


def test_saved_and_found_again(tmp_path):
    store = tmp_path / "store"
    assert folders.newest(store) is None
    for step in (3, 7):
        folders.save(state(tmp_path, f"at {step}"), step=step, checkpoint_dir=store)
    path, step = folders.newest(store)
    assert (step, (path / "deep" / "b.txt").read_text()) == (7, "at 7")
    manifest = checkpoint.verify(path)
    assert (manifest.commit, manifest.strategy) == (2, "folder")
    assert checkpoint.read_manifest(store / manifest.parent).step == 3


def test_one_changed_byte_and_the_one_before_is_taken(tmp_path):
    store = tmp_path / "store"
    for step in (3, 7):
        folders.save(state(tmp_path, f"at {step}"), step=step, checkpoint_dir=store)
    path, _ = folders.newest(store)
    data = bytearray((path / "a.bin").read_bytes())
    data[1234] ^= 1
    (path / "a.bin").write_bytes(data)
    assert folders.newest(store)[1] == 3
    assert len(checkpoint.scan(store).quarantined) == 1


def test_kept_by_the_rules_of_the_job(tmp_path, monkeypatch):
    store = tmp_path / "store"
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(store))
    keep = '{"last": 1, "best": {"metric": "acc"}, "every": 10}'
    monkeypatch.setenv("PHALANX_CHECKPOINT_KEEP", keep)
    for step, acc in ((8, 0.1), (9, 0.9), (10, 0.2), (11, 0.3), (12, 0.4)):
        folders.save(state(tmp_path, str(step)), step=step, metrics={"acc": acc})
    steps = [one.manifest.step for one in checkpoint.list_checkpoints(store)]
    assert sorted(steps) == [9, 10, 12]


def test_only_rank_0_saves(tmp_path, monkeypatch):
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert folders.save(state(tmp_path, "x"), step=1, checkpoint_dir=tmp_path / "store") is None


def test_nothing_to_save_and_nowhere_to_save_it(tmp_path):
    assert folders.save(state(tmp_path, "x"), step=1) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no files"):
        folders.save(tmp_path / "empty", step=1, checkpoint_dir=tmp_path / "store")
    with pytest.raises((SpecInvalid, ValueError)):
        folders.save(state(tmp_path, "x"), step=-1, checkpoint_dir=tmp_path / "store")


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A function that makes this process a rank of two nodes without a shared folder."""
    pytest.importorskip("obstore")
    store_folders._opened.cache_clear()
    tiers = []

    def become(rank, generation=0):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        env |= {"MASTER_ADDR": "x", "MASTER_PORT": "1", "PHALANX_GENERATION": str(generation)}
        env |= {"PHALANX_CHECKPOINT_STORE": f"file://{tmp_path}/far"}
        env |= {"PHALANX_CHECKPOINT_DIR": str(tmp_path / f"node{rank}")}
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        folders._continued.clear()
        info = folders._info(None)
        tiers.append(store_folders.tier_of(info, folders._report(info.report_file)))
        return tmp_path / f"node{rank}"

    yield become
    for tier in tiers:
        atexit.unregister(tier.finish)
        tier.leave()


def test_nodes_without_a_shared_folder_commit_in_the_store(tmp_path, node):
    node(0)
    assert folders.newest() is None
    for step in (3, 7):
        assert folders.save(state(tmp_path, f"at {step}"), step=step).startswith("file://")
    assert not list((tmp_path / "node0").iterdir())
    for rank in (0, 1):
        folder = node(rank, generation=1)
        path, step = folders.newest()
        assert (path.parent, step) == (folder, 7)
        assert (path / "deep" / "b.txt").read_text() == "at 7"
    node(0, generation=1)
    folders.save(state(tmp_path, "at 9"), step=9)
    node(1, generation=1)  # a rank that is late begins where the others did
    assert folders.newest()[1] == 7
    node(1, generation=2)
    assert folders.newest()[1] == 9
    assert len(checkpoint.list_checkpoints(tmp_path / "node1")) == 1


def test_a_damaged_copy_on_a_node_is_fetched_again(tmp_path, node):
    node(0)
    folders.save(state(tmp_path, "at 3"), step=3)
    node(1, generation=1)
    path, _ = folders.newest()
    (path / "a.bin").write_bytes(b"x" * 400_000)
    assert folders.newest()[1] == 3
    assert (path / "a.bin").read_bytes()[:4] == b"at 3"


def test_a_generation_that_was_replaced_commits_no_folder(tmp_path, node):
    node(0, generation=1)
    assert folders.newest() is None
    node(0, generation=2)
    folders.save(state(tmp_path, "new"), step=5)
    node(0, generation=1)
    with pytest.raises(OSError, match="a newer generation"):
        folders.save(state(tmp_path, "old"), step=50)
    node(1, generation=3)
    assert folders.newest()[1] == 5


@pytest.mark.leaves("a rank holds its report file until its process ends")
def test_that_they_are_not_copied_to_an_object_store_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("PHALANX_CHECKPOINT_STORE", "s3://bucket/prefix")
    monkeypatch.setenv("PHALANX_REPORT_FILE", str(tmp_path / "report"))
    for step in (1, 2):
        folders.save(state(tmp_path, str(step)), step=step)
    data = (tmp_path / "report").read_bytes()
    size = reports.committed_length(data[: reports.HEADER_BYTES])
    body = data[reports.HEADER_BYTES : reports.HEADER_BYTES + size]
    said = [record for _, record in reports.decode(body) if record["k"] == "warn"]
    assert len(said) == 1 and "checkpoint.directory" in said[0]["message"]
