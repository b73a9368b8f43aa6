"""A script's own folder as checkpoints: committed when quiet, never half, put back before a start."""

import errno
import os
import queue
import shutil
import subprocess
import sys
import threading
import time

import pytest

from phalanx import checkpoint
from phalanx.checkpoint import folders
from phalanx.checkpoint.folders import SET_ASIDE, FolderOrigin
from phalanx.checkpoint.remote_tier import CheckpointTier
from phalanx.core.contract.records import to_json
from phalanx.core.training.checkpoints import Keep
from phalanx.kit.clock import SystemClock
from phalanx.launch import linux
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.spec.support import check_supported
from phalanx.supervise.ranks import checkpoint_folder, restore_lock
from phalanx.supervise.ranks.checkpoint_folder import (
    ScriptProgress,
    StagedCheckpoint,
    WatchedCheckpointFolder,
)
from phalanx.supervise.ranks.folder_commits import CheckpointFolderConfig
from support.faulty_files import FaultyFiles

pytestmark = pytest.mark.integration
GUARD_S = 60.0


class Watched:
    """One generation's folder, and what its watcher said."""

    def __init__(
        self,
        root,
        generation=0,
        intact=lambda: True,
        keep=3,
        commits=True,
        folder="out",
        far=None,
        shared=True,
        makes=True,
        wait_s=0.2,
        begins=None,
    ):
        self.folder, self.store = root / folder, root / "store"
        self.said, self.step, self.failed = [], None, []
        self.calls: queue.Queue = queue.Queue()
        facts = CheckpointFolderConfig(
            folder=self.folder,
            store=self.store,
            keep=Keep(last=keep),
            commits=commits,
            far=far,
            env=dict(os.environ),
            meeting=f"127.0.0.1:{4000 + generation}",
            wait_s=wait_s,
            lock=restore_lock.lock_file(root, self.folder) if shared else None,
            origin=FolderOrigin(
                job="j-1",
                attempt=1,
                generation=generation,
                world_size=2,
                reference_world=2,
            ),
        )
        self.kept = WatchedCheckpointFolder(
            facts,
            SystemClock(),
            self.calls.put,
            lambda at, record: self.said.append(to_json(record, at)),
            lambda: ScriptProgress(self.step, {"loss": 0.5}),
            intact,
        )
        if begins is not None:
            self.kept.begin_from(begins)
        opened = threading.Event()
        self.kept.open(opened.set, lambda said, cause: self.failed.append(said))
        self.until(lambda: opened.is_set() or self.failed)
        if makes and not self.failed:  # as a script does
            self.folder.mkdir(exist_ok=True)

    def until(self, condition):
        deadline = time.monotonic() + GUARD_S
        while not condition():
            assert time.monotonic() < deadline
            try:
                self.calls.get(timeout=0.02)()
            except queue.Empty:
                continue

    def kinds(self):
        return [record["k"] for record in self.said]

    def committed(self, count):
        self.until(lambda: self.kinds().count("checkpoint") >= count)
        return checkpoint.list_checkpoints(self.store)

    def finish(self, then):
        self.kept.finish(then, GUARD_S)

    def end(self, how):
        over = threading.Event()
        how(over.set)
        self.until(over.is_set)


def test_committed_shared_and_kept_by_the_rules(tmp_path):
    one = Watched(tmp_path, keep=2)
    for step in (1, 2, 3):
        one.step = step
        (one.folder / f"epoch-{step}.bin").write_bytes(bytes([step]) * 100_000)
        (one.folder / f"epoch-{step + 1}.bin.tmp").write_bytes(b"half")
        one.committed(step)
    one.end(one.finish)  # only then what has to go is gone
    found = checkpoint.list_checkpoints(one.store)
    assert [checkpoint.verify(each.path).step for each in found] == [3, 2]
    assert [entry.path for entry in found[0].manifest.files] == [
        f"epoch-{n}.bin" for n in (1, 2, 3)
    ]
    assert found[0].manifest.metrics == {"loss": 0.5}
    # What did not change lies on the disk once.
    inodes = {(each.path / "epoch-1.bin").stat().st_ino for each in found}
    assert len(inodes) == 1 and inodes != {(one.folder / "epoch-1.bin").stat().st_ino}
    assert "removed" in one.kinds()


@pytest.mark.parametrize("shared", [True, False])
def test_the_folder_is_the_scripts_own_until_there_is_something_to_restore(tmp_path, shared):
    one = Watched(tmp_path, makes=False, shared=shared)
    assert not one.folder.exists()
    one.folder.mkdir()
    (one.folder / "state.bin").write_bytes(b"good")
    one.committed(1)
    one.end(one.kept.abandon)
    assert os.listdir(one.folder) == ["state.bin"]
    shutil.rmtree(one.folder)
    two = Watched(tmp_path, generation=1, makes=False, shared=shared)
    assert os.listdir(two.folder) == ["state.bin"]
    two.end(two.kept.abandon)
    ours = [name for name in os.listdir(tmp_path) if name.startswith(".phalanx")]
    assert len(ours) == int(shared)


def test_a_new_start_finds_exactly_what_was_committed(tmp_path):
    one = Watched(tmp_path)
    (one.folder / "deep").mkdir()
    (one.folder / "deep" / "state.bin").write_bytes(b"good" * 1000)
    one.committed(1)
    one.end(one.kept.abandon)
    # The script dies while it writes: half a file in place, and one that was never whole.
    (one.folder / "deep" / "state.bin").write_bytes(b"goo")
    (one.folder / "later.bin").write_bytes(b"half")
    two = Watched(tmp_path, generation=1)
    assert (two.folder / "deep" / "state.bin").read_bytes() == b"good" * 1000
    assert not (two.folder / "later.bin").exists()
    assert (two.folder / SET_ASIDE / "later.bin").read_bytes() == b"half"
    assert two.kinds() == ["restored"]
    two.end(two.finish)
    assert len(checkpoint.list_checkpoints(two.store)) == 1  # nothing new, nothing committed


def test_a_checkpoint_that_rotted_is_set_aside(tmp_path):
    one = Watched(tmp_path)
    for number in (1, 2):
        (one.folder / "state.bin").write_bytes(bytes([number]) * 1000)
        found = one.committed(number)
    one.end(one.kept.abandon)
    file = found[0].path / "state.bin"
    file.write_bytes(b"\2" * 500 + b"\3" + b"\2" * 499)
    two = Watched(tmp_path, generation=1)
    assert (two.folder / "state.bin").read_bytes() == b"\1" * 1000
    assert two.kinds() == ["quarantined", "restored"]
    two.end(two.kept.abandon)


def test_pipes_and_links_are_no_state(tmp_path):
    one = Watched(tmp_path)
    os.mkfifo(one.folder / "pipe")  # to open it for reading would take for ever
    (one.folder / "link").symlink_to(tmp_path)
    (one.folder / "state.bin").write_bytes(b"good")
    found = one.committed(1)
    one.end(one.finish)
    assert [entry.path for entry in found[0].manifest.files] == ["state.bin"]


def test_a_folder_in_the_place_of_a_file_gives_way(tmp_path):
    one = Watched(tmp_path)
    (one.folder / "state").write_bytes(b"good")
    one.committed(1)
    one.end(one.kept.abandon)
    (one.folder / "state").unlink()
    (one.folder / "state").mkdir()
    (one.folder / "state" / "whole").write_bytes(b"later")
    (one.folder / "state" / "half.tmp").write_bytes(b"half")
    two = Watched(tmp_path, generation=1)
    assert not two.failed and (two.folder / "state").read_bytes() == b"good"
    assert (two.folder / SET_ASIDE / "state" / "whole").read_bytes() == b"later"
    two.end(two.kept.abandon)


def test_two_nodes_with_one_folder_put_it_back_at_once(tmp_path):
    one = Watched(tmp_path)
    (one.folder / "state.bin").write_bytes(b"good")
    found = one.committed(1)[0]
    one.end(one.kept.abandon)
    for number in range(200):
        (one.folder / f"later-{number}").write_bytes(b"x")
    errors = []

    def put_back():
        try:
            folders.put_back(found.path, found.manifest, one.folder)
        except Exception as error:
            errors.append(error)

    nodes = [threading.Thread(target=put_back) for _ in range(3)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(GUARD_S)
    assert errors == [] and list(folders.look(one.folder)) == ["state.bin"]


@pytest.mark.parametrize("guarded", [True, False])
def test_a_late_node_leaves_alone_what_ranks_of_another_already_write(
    tmp_path, monkeypatch, guarded
):
    if not guarded:  # the negative control: nobody hears what another node has done
        monkeypatch.setattr(restore_lock.RestoreTurn, "_read", lambda self: None)
    one = Watched(tmp_path)
    (one.folder / "state.bin").write_bytes(b"good")
    one.committed(1)
    one.end(one.kept.abandon)
    (one.folder / "half.bin").write_bytes(b"half")
    early = Watched(tmp_path, generation=1, commits=False)
    assert not (early.folder / "half.bin").exists()
    (early.folder / "state.bin").write_bytes(b"newer")
    (early.folder / "another.bin").write_bytes(b"new")
    late = Watched(tmp_path, generation=1)
    assert (late.folder / "state.bin").read_bytes() == (b"newer" if guarded else b"good")
    assert (late.folder / "another.bin").exists() is guarded
    if guarded:
        # What was written before the node that commits had come is committed by it all the same.
        assert late.kinds()[:1] == ["restored"] and early.kinds() == []
        found = late.committed(1)
        assert checkpoint.verify(found[0].path).step == 2
        assert (found[0].path / "another.bin").read_bytes() == b"new"
    for node in (early, late):
        node.end(node.kept.abandon)


def test_a_node_with_a_folder_of_its_own_gets_its_own_back(tmp_path):
    one = Watched(tmp_path)
    (one.folder / "state.bin").write_bytes(b"good")
    one.committed(1)
    one.end(one.kept.abandon)
    for name in ("out", "elsewhere"):
        node = Watched(tmp_path, generation=1, commits=name == "out", folder=name)
        assert (node.folder / "state.bin").read_bytes() == b"good"
        node.end(node.kept.abandon)


def test_nodes_take_turns_and_one_that_is_not_needed_any_more_leaves(tmp_path):
    whose = ("j-1", 1, 0, "127.0.0.1:4000")
    over = threading.Event()
    asked = []

    def waits(seconds):
        asked.append(seconds)
        over.set()
        return over.is_set()

    with restore_lock.turn(tmp_path / "lock", whose, over.wait) as first:
        first.tell(restore_lock.RestoreResult(None, 7, {"x": (1, 2, 3)}, [("a", "bad")]))
        with restore_lock.turn(tmp_path / "lock", whose, waits) as second:
            assert second is None and asked
    with restore_lock.turn(tmp_path / "lock", whose, waits) as third:
        assert third.told == restore_lock.RestoreResult(None, 7, {"x": (1, 2, 3)}, [["a", "bad"]])
    with restore_lock.turn(tmp_path / "lock", (*whose[:2], 1, "127.0.0.1:4001"), waits) as next_one:
        assert next_one.told is None
    (tmp_path / "lock").write_bytes(b'{"generation": ["j-1", 1, 0, "127.0.0.1:4000"], "st')
    with restore_lock.turn(tmp_path / "lock", whose, waits) as after_a_death:
        assert after_a_death.told is None


def test_a_bad_checkpoint_that_another_node_met_is_set_aside(tmp_path):
    one = Watched(tmp_path)
    for number in (1, 2):
        (one.folder / "state.bin").write_bytes(bytes([number]) * 1000)
        found = one.committed(number)
    one.end(one.kept.abandon)
    (found[0].path / "state.bin").write_bytes(b"\3" * 1000)
    early = Watched(tmp_path, generation=1, commits=False)
    assert (early.folder / "state.bin").read_bytes() == b"\1" * 1000
    late = Watched(tmp_path, generation=1)
    assert late.kinds() == ["quarantined", "restored"] and early.kinds() == []
    for node in (early, late):
        node.end(node.kept.abandon)


def copied(tmp_path, numbers=(1, 2)):
    """A store with copies of a folder's checkpoints."""
    pytest.importorskip("obstore")
    url = f"file://{tmp_path}/far"
    one = Watched(tmp_path, far=url, shared=False)
    for number in numbers:
        (one.folder / "state.bin").write_bytes(bytes([number]) * 1000)
        one.committed(number)
    one.end(one.finish)
    assert one.kinds().count("uploaded") == len(numbers)
    return url


@pytest.mark.parametrize("commits", [True, False])
def test_with_the_disk_lost_the_folder_comes_back_from_the_object_store(tmp_path, commits):
    url = copied(tmp_path)
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "out")
    lost = Watched(tmp_path, generation=1)  # the negative control: nobody looks there
    assert not list(lost.folder.glob("*.bin"))
    lost.end(lost.kept.abandon)
    two = Watched(tmp_path, generation=2, far=url, commits=commits, shared=False)
    assert (two.folder / "state.bin").read_bytes() == b"\2" * 1000
    assert two.kinds() == (["restored"] if commits else [])
    two.end(two.kept.abandon)


def test_a_folder_that_rotted_here_comes_from_there(tmp_path):
    url = copied(tmp_path)
    newest = checkpoint.list_checkpoints(tmp_path / "store")[0].path
    (newest / "state.bin").write_bytes(b"\3" * 1000)
    two = Watched(tmp_path, generation=1, far=url, shared=False)
    assert (two.folder / "state.bin").read_bytes() == b"\2" * 1000
    assert two.kinds() == ["quarantined", "restored"] and two.said[1]["name"] == newest.name
    two.end(two.kept.abandon)


def test_a_store_that_cannot_be_reached_is_a_warning_or_fails_the_start(tmp_path):
    url = copied(tmp_path, numbers=(1,))
    shutil.rmtree(tmp_path / "far")
    (tmp_path / "far").write_text("in the way")
    two = Watched(tmp_path, generation=1, far=url, shared=False)
    assert set(two.kinds()) == {"warn", "restored"} and not two.failed
    two.end(two.kept.abandon)
    shutil.rmtree(tmp_path / "store")
    three = Watched(tmp_path, generation=2, far=url, shared=False)
    assert "could not be restored" in three.failed[0]
    three.end(three.kept.abandon)


def test_nobody_waits_for_copies_once_the_attempt_is_over(tmp_path, monkeypatch):
    released, waits = threading.Event(), threading.Event()

    class Slow(CheckpointTier):
        def finish(self, limit_s):
            waits.set()
            assert released.wait(limit_s)

        def leave(self):
            released.set()

    one = Watched(tmp_path)
    one.kept._commits.tier = Slow()
    over = threading.Event()
    one.finish(over.set)
    one.until(waits.is_set)
    assert not over.is_set()
    one.kept.hurry()
    one.until(over.is_set)


@pytest.mark.parametrize("recovers", [True, False])
def test_the_last_commit_is_tried_again_on_a_full_disk(tmp_path, monkeypatch, recovers):
    one = Watched(tmp_path, wait_s=GUARD_S if recovers else 0.0)
    monkeypatch.setattr(one.kept._hurried, "wait", lambda seconds: time.sleep(0.01))
    (one.folder / "state").write_text("first")
    one.committed(1)
    disk = FaultyFiles(one.store, monkeypatch)
    disk.writing = errno.ENOSPC
    over = threading.Event()
    (one.folder / "state").write_text("last")
    one.finish(over.set)
    one.until(lambda: "warn" in one.kinds())
    if recovers:
        disk.heal()
    one.until(over.is_set)
    disk.heal()
    (newest, *_) = checkpoint.list_checkpoints(one.store)
    saved = (newest.path / "state").read_text()
    if recovers:
        assert (one.kept.unsaved, saved) == ("", "last")
    else:
        assert "No space left on device" in one.kept.unsaved and saved == "first"


def test_a_folder_that_cannot_be_read_is_neither_empty_nor_smaller(tmp_path, monkeypatch):
    one = Watched(tmp_path, wait_s=GUARD_S)
    monkeypatch.setattr(one.kept._hurried, "wait", lambda seconds: time.sleep(0.01))
    (one.folder / "deep").mkdir()
    (one.folder / "deep" / "weights").write_text("first")
    (one.folder / "state").write_text("first")
    one.until(lambda: _files_of_newest(one) == {"state", "deep/weights"})
    disk = FaultyFiles(one.folder / "deep", monkeypatch)
    disk.reading = errno.EIO
    (one.folder / "state").write_text("last")
    over = threading.Event()
    one.finish(over.set)
    one.until(lambda: "warn" in one.kinds())
    assert _files_of_newest(one) == {"state", "deep/weights"}
    disk.heal()
    one.until(over.is_set)
    (newest, *_) = checkpoint.list_checkpoints(one.store)
    assert one.kept.unsaved == "" and _files_of_newest(one) == {"state", "deep/weights"}
    assert (newest.path / "state").read_text() == "last"


def test_a_script_that_removes_its_folder_is_not_waited_for(tmp_path, monkeypatch):
    one = Watched(tmp_path, wait_s=GUARD_S)
    (one.folder / "state").write_text("first")
    one.committed(1)
    disk = FaultyFiles(one.store, monkeypatch)
    disk.writing = errno.ENOSPC
    (one.folder / "state").write_text("second")
    one.until(lambda: "warn" in one.kinds())
    shutil.rmtree(one.folder)
    pauses = []
    monkeypatch.setattr(one.kept._hurried, "wait", pauses.append)
    one.end(one.finish)
    assert one.kept.unsaved == "" and pauses == []


def _files_of_newest(one):
    (newest, *_) = [*checkpoint.list_checkpoints(one.store), None]
    return set() if newest is None else {entry.path for entry in newest.manifest.files}


def test_a_folder_that_cannot_be_put_back_fails_the_start(tmp_path):
    one = Watched(tmp_path)
    (one.folder / "state.bin").write_bytes(b"good")
    one.committed(1)
    one.end(one.kept.abandon)
    shutil.rmtree(one.folder)
    one.folder.write_text("in the way")
    two = Watched(tmp_path, generation=1)
    assert "could not be restored" in two.failed[0]
    two.end(two.kept.abandon)


def test_a_watcher_that_fails_still_lets_the_generation_end(tmp_path, monkeypatch):
    one = Watched(tmp_path)

    def failing(*args):
        raise RuntimeError("never thought of")

    monkeypatch.setattr(checkpoint_folder, "_writers", failing)
    (one.folder / "state.bin").write_bytes(b"good")
    one.until(lambda: "warn" in one.kinds())
    assert "never thought of" in one.said[-1]["message"]
    one.end(one.finish)
    assert checkpoint.list_checkpoints(one.store) == [], "the last commit fails as well"


WRITER = """
import sys, time
with open(sys.argv[1], "wb") as file:
    file.write(b"x" * 1000)
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
    file.write(b"x" * 1000)
"""


def half_written(path):
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def rests(one, monkeypatch, question):
    """Wait until the watcher has asked `question`, one of its module's, several times."""
    asked, done, usual = [], threading.Event(), getattr(checkpoint_folder, question)

    def counted(*args):
        asked.append(args)
        if len(asked) > 6:
            done.set()
        return usual(*args)

    monkeypatch.setattr(checkpoint_folder, question, counted)
    one.until(done.is_set)


def test_a_file_that_is_open_for_writing_is_waited_for(tmp_path, monkeypatch):
    one = Watched(tmp_path)
    process = half_written(one.folder / "state.bin")
    rests(one, monkeypatch, "_writers")
    assert "checkpoint" not in one.kinds()
    process.communicate(b"\n")
    found = one.committed(1)
    assert found[0].manifest.size_bytes == 2000
    one.end(one.kept.abandon)


@pytest.mark.parametrize("guarded", [True, False])
def test_what_a_dead_rank_left_half_written_is_no_checkpoint(tmp_path, monkeypatch, guarded):
    pids = []

    def intact():
        return all(linux.holds_files(pid) for pid in pids)

    one = Watched(tmp_path, intact=intact if guarded else lambda: True)
    process = half_written(one.folder / "state.bin")
    pids.append(process.pid)
    process.kill()
    if guarded:
        rests(one, monkeypatch, "_long_lived_pids")
        one.end(one.kept.abandon)
        assert checkpoint.list_checkpoints(one.store) == []
    else:
        # The negative control: without the question whether all ranks live, half a file is committed.
        assert one.committed(1)[0].manifest.size_bytes == 1000
        one.end(one.kept.abandon)
    process.communicate()


def test_what_a_spec_says_is_checked():
    for wrong in ("/abs", "../up", ".", ".hidden/x"):
        with pytest.raises(Exception, match="directory"):
            validate_spec({"schema": 1, "run": "x", "checkpoint": {"directory": wrong}})
    with pytest.raises(Exception, match="metrics"):
        validate_spec({"schema": 1, "run": "x", "metrics": "no name"})
    far = {"directory": "out", "store": "s3://bucket/x"}
    assert check_supported(validate_spec({"schema": 1, "run": "x", "checkpoint": far})) == []
    disguised = {**far, "compress": "zstd"}
    problems = check_supported(validate_spec({"schema": 1, "run": "x", "checkpoint": disguised}))
    assert [problem.path for problem in problems] == ["checkpoint.directory"]


def test_a_link_in_the_place_of_the_mark_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"dear")
    lock = restore_lock.lock_file(tmp_path, tmp_path / "kept")
    lock.symlink_to(victim)
    told = restore_lock.RestoreResult(path=None, step=0, stats={}, bad=())
    with (
        pytest.raises(OSError, match=restore_lock.MARK),
        restore_lock.turn(lock, (1,), lambda _: True) as turn,
    ):
        turn.tell(told)
    assert victim.read_bytes() == b"dear"


def test_a_job_without_a_commit_begins_from_that_of_another_one(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = Watched(tmp_path / "a")
    first.step = 7
    (first.folder / "state.bin").write_bytes(b"seven")
    (found,) = first.committed(1)
    first.end(first.finish)
    staged = StagedCheckpoint(found.path, 7, found.manifest.why)
    second = Watched(tmp_path / "b", begins=staged)
    assert (second.folder / "state.bin").read_bytes() == b"seven"
    assert second.kept.restored_step == 7
    restored = next(one for one in second.said if one["k"] == "restored")
    assert (restored["path"], restored["step"]) == (str(found.path), 7)
    second.step = 8
    (second.folder / "state.bin").write_bytes(b"eight")
    (own,) = second.committed(1)
    assert (own.manifest.step, own.manifest.parent) == (8, found.manifest.name)
    second.end(second.finish)
    # From now on its own counts.
    third = Watched(tmp_path / "b", generation=1, begins=staged)
    assert (third.folder / "state.bin").read_bytes() == b"eight"
    third.end(third.kept.abandon)


def test_a_checkpoint_of_the_library_is_not_put_into_a_folder(tmp_path):
    one = Watched(tmp_path, begins=StagedCheckpoint(tmp_path / "step-7", 7, "interval"))
    assert "is a checkpoint of phalanx.train and no copy of a folder" in one.failed[0]
    one.end(one.kept.abandon)
