"""A script's own folder on nodes that share no disk: committed in the object store, restored from there."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from integration.test_supervise_folder import GUARD_S, Watched
from phalanx import checkpoint
from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import open_store
from support.s3 import KEY, SECRET, needs_s3, s3_server

pytest.importorskip("obstore")
pytestmark = pytest.mark.integration

# Node rank 0, which is killed in the moment in which it says that a folder is committed.
KILLED = """
import os, signal, sys
from pathlib import Path
from integration.test_supervise_folder import Watched
root, url, generation, *states = sys.argv[1:]
node = Watched(Path(root), generation=int(generation), far=url)
for count, state in enumerate(states, 1):
    (node.folder / "state.bin").write_bytes(state.encode() * 8_000_000)
    node.until(lambda: node.kinds().count("checkpoint") >= count)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_after(root, url, generation, *states):
    root.mkdir(exist_ok=True)
    here = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", KILLED, str(root), url, str(generation), *states]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": here}, timeout=10 * GUARD_S)
    assert done.returncode == -signal.SIGKILL


def started(roots, url, generation, **more):
    """All nodes of a generation; the first of `roots` is node rank 0, which begins last."""
    for root in roots:
        root.mkdir(exist_ok=True)
    with ThreadPoolExecutor() as pool:
        begun = [
            pool.submit(Watched, root, generation=generation, far=url, commits=not rank, **more)
            for rank, root in reversed(list(enumerate(roots)))
        ]
        return [one.result(timeout=GUARD_S) for one in reversed(begun)]


def ended(nodes):
    for node in nodes:
        node.end(node.kept.abandon)


def states(nodes):
    return [(node.folder / "state.bin").read_bytes()[:1] for node in nodes]


@needs_s3
@pytest.mark.extras
def test_after_a_kill_and_a_lost_disk_all_nodes_have_the_newest_commit(tmp_path, monkeypatch):
    with s3_server(tmp_path / "s3") as server:
        access = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        for name, value in {**access, "AWS_ENDPOINT_URL": server.endpoint}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        url, roots = "s3://bucket/job", [tmp_path / f"node{rank}" for rank in range(3)]
        killed_after(roots[0], url, 0, "a", "b")
        ended(started(roots, url, 1))
        killed_after(roots[0], url, 2, "c")
        shutil.rmtree(roots[0])
        for generation, order in enumerate((roots, roots[::-1]), 3):  # another node is rank 0
            nodes = started(order, url, generation)
            assert states(nodes) == [b"c"] * 3
            assert [node.kinds().count("restored") for node in nodes] == [1, 0, 0]
            for root in roots:
                (copy,) = checkpoint.list_checkpoints(root / "store")
                assert checkpoint.verify(copy.path).generation == 2
            ended(nodes)
        shutil.rmtree(roots[2])
        (roots[1] / "out" / "state.bin").write_bytes(b"rotten")
        nodes = started(roots, url, 5)
        assert states(nodes) == [b"c"] * 3
        ended(nodes)
        found = remote.scrub(open_store(url, dict(os.environ)))
        assert set(found.values()) == {"valid"}


def file_store(tmp_path):
    return f"file://{tmp_path}/far"


def test_a_generation_that_was_replaced_commits_nothing_and_retention_is_in_the_store(tmp_path):
    url = file_store(tmp_path)
    (old,) = started([tmp_path / "old"], url, 0, keep=2)
    for number in (1, 2, 3):
        (old.folder / "state.bin").write_bytes(b"%d" % number)
        old.until(lambda number=number: old.kinds().count("checkpoint") == number)
    old.until(lambda: "removed" in old.kinds())
    (new,) = started([tmp_path / "new"], url, 1)
    assert states([new]) == [b"3"]
    (old.folder / "state.bin").write_bytes(b"4")
    old.until(lambda: "warn" in old.kinds())
    assert any("a newer generation" in one.get("message", "") for one in old.said)
    ended([old, new])
    assert sorted(remote.scrub(open_store(url, {})).values()) == ["valid"] * 2
    assert len(checkpoint.list_checkpoints(old.store)) == 1  # of the third; the store has two


def test_a_damaged_copy_on_a_node_is_fetched_again(tmp_path):
    url, roots = file_store(tmp_path), [tmp_path / "node0", tmp_path / "node1"]
    nodes = started(roots, url, 0)
    (nodes[0].folder / "state.bin").write_bytes(b"good")
    nodes[0].until(lambda: "checkpoint" in nodes[0].kinds())
    ended(nodes)
    (copy,) = checkpoint.list_checkpoints(roots[0] / "store")
    (copy.path / "state.bin").write_bytes(b"evil")
    shutil.rmtree(roots[0] / "out")
    nodes = started(roots, url, 1)
    assert states(nodes) == [b"g", b"g"]
    assert "fetched again" in str(nodes[0].said)
    ended(nodes)


def test_nodes_that_share_the_folder_restore_it_once(tmp_path):
    url, root = file_store(tmp_path), tmp_path / "both"
    nodes = started([root, root], url, 0)
    (nodes[0].folder / "state.bin").write_bytes(b"mine")
    nodes[0].until(lambda: "checkpoint" in nodes[0].kinds())
    ended(nodes)
    shutil.rmtree(root)
    nodes = started([root, root], url, 1)
    assert states(nodes) == [b"m", b"m"]
    ended(nodes)
