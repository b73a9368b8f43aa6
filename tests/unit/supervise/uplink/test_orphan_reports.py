"""A supervisor is killed at any moment: who comes later says what it did not get to say, once."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.contract import records as reports
from phalanx.core.gang.stalls import StallPolicy, StallWatch
from phalanx.core.training.ledger import Consumed, merge
from phalanx.kit.clock import SystemClock
from phalanx.launch.identity import SupervisorRecord, this_process
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import SyncResponse
from phalanx.supervise.ranks import ledger_watermarks, records
from phalanx.supervise.ranks.ledger_watermarks import (
    LedgerWatermark,
    WatermarkFile,
    last_stored,
    read_watermarks,
)
from phalanx.supervise.ranks.records import GenerationRecords
from phalanx.supervise.uplink import orphan_reports
from phalanx.supervise.uplink.orphan_reports import OrphanReports, unreported_folders
from phalanx.testing.executors import gang_contract

pytestmark = [
    pytest.mark.unit,
    pytest.mark.leaves("the supervisors in these tests play ones that were killed"),
]
BATCH, RANKS = 8, 2


class Killed(BaseException):
    """Nothing more of a supervisor runs."""


class Plane:
    """Stores reports by number, as the control plane does; breaks off after `calls` calls."""

    def __init__(self, acked=0):
        self.acked = acked
        self.stored = []
        self.calls = 10**9
        self.answers = True

    def sync(self, request):
        assert request.heartbeat.generation == -1
        if request.attempt > 1:  # one that was killed before it had ranks
            return SyncResponse.model_construct(acked=0)
        if self.calls == 0:
            raise Killed
        self.calls -= 1
        self.store(request.reports)
        if self.calls == 0 and not self.answers:
            raise Killed  # after it was stored, before that was heard
        return SyncResponse.model_construct(acked=self.acked)

    def store(self, made):
        fresh = [one for one in made if one.seq > self.acked]
        self.stored += fresh
        self.acked = max([self.acked, *(one.seq for one in fresh)])

    def rows(self):
        made = [one for one in self.stored if one.kind == "ledger"]
        return merge(Consumed(r.epoch, r.lo, r.hi, r.times) for one in made for r in one.rows)

    def close(self):
        pass


def record(lo, rank, every):
    """What a rank writes at one step."""
    half = BATCH // RANKS
    begin = lo + rank * half
    yield {"k": "ledger", "t": 1, "step": lo // BATCH, "epoch": 0, "lo": begin, "hi": begin + half}
    step = lo // BATCH + 1
    if rank == 0 and step % every == 0:
        yield {"k": "checkpoint", "t": 1, "step": step, "epoch": 0, "path": f"/c/{step}"}


def append(path, made):
    data = path.read_bytes() if path.exists() else reports.header(1)
    data += b"".join(reports.framed(one) for one in made)
    length = reports.pack_length(len(data) - reports.HEADER_BYTES)
    at = reports.LENGTH_OFFSET
    path.write_bytes(data[:at] + length + data[at + 8 :])


def folders(root, attempt):
    """The folder of one supervisor, as its executor and itself leave it."""
    node_dir = root / f"a{attempt:03d}" / "n0"
    (node_dir / "g000").mkdir(parents=True)
    gang = gang_contract(7, attempt=attempt, ranks_per_node=RANKS, grace_s=1.0)
    assignment = Assignment(
        gang=gang,
        node_rank=0,
        node_dir=str(node_dir),
        workdir="/",
        cwd="/",
        command="true",
        env={},
        cpus=1,
        server_url="http://127.0.0.1:1",
        token="t",
    )
    (node_dir / "assignment.json").write_text(assignment.model_dump_json())
    (node_dir / "lock").touch()
    SupervisorRecord(this_process(), None, "tag").write(node_dir)
    return node_dir, assignment


def go_on(monkeypatch, root, plane, attempt=2):
    """What the supervisor of a later attempt does when it starts."""
    node_dir = root / f"a{attempt:03d}" / "n0"
    assignment = folders(root, attempt)[1] if not node_dir.exists() else None
    if assignment is None:
        assignment = Assignment.model_validate_json((node_dir / "assignment.json").read_bytes())
    monkeypatch.setattr(orphan_reports, "SyncConnection", lambda *_: plane)
    here = OrphanReports(assignment, SystemClock())
    here._work(unreported_folders(node_dir))
    assert here.over
    return here


looks = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    looks=looks,
    unread=st.integers(0, 6),
    most=st.sampled_from([1, 3, 5000]),
    every=st.sampled_from([2, 5]),
    stored=st.floats(0, 1),
    deaths=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=3),
)
def test_every_sample_is_told_once_wherever_supervisors_are_killed(
    monkeypatch, tmp_path_factory, looks, unread, most, every, stored, deaths
):
    """One is killed with some of its reports stored; its successors, while they make up for it."""
    root = tmp_path_factory.mktemp("job")
    monkeypatch.setattr(records, "_MOST_ROWS", most)
    monkeypatch.setattr(orphan_reports, "_BATCH", 2)
    folder = folders(root, 1)[0] / "g000"
    files = {rank: folder / f"r{rank:05d}.report" for rank in range(RANKS)}
    plane, made, lo = Plane(), [], 0
    watermarks = WatermarkFile(folder, lambda: plane.acked)
    here = GenerationRecords(
        0,
        files,
        lambda make: made.append(make(len(made) + 1)),
        StallWatch(StallPolicy(), 0.0),
        watermarks,
    )
    watermarks.begin()

    def train(steps):
        nonlocal lo
        for _ in range(steps):
            for rank, path in files.items():
                append(path, record(lo, rank, every))
            lo += 2 * BATCH if most == 1 else BATCH  # rows that do not join, too

    for steps, fetched in looks:
        train(steps)
        here.read()
        if fetched:
            here.put_ledger(lambda make: made.append(make(len(made) + 1)))
    train(unread)
    expected = merge(
        Consumed(0, one["lo"], one["hi"])
        for path in files.values()
        for one in read_all(path)
        if one["k"] == "ledger"
    )
    saves = [one["path"] for path in files.values() for one in read_all(path) if "path" in one]
    plane.store(made[: round(stored * len(made))])
    here.close()
    for attempt, (calls, answers) in enumerate(deaths, 2):
        plane.calls, plane.answers = calls, answers
        try:
            go_on(monkeypatch, root, plane, attempt)
        except Killed:
            pass
    plane.calls = 10**9
    go_on(monkeypatch, root, plane, 9)
    assert plane.rows() == expected
    told = [one.path for one in plane.stored if one.kind == "checkpoint"]
    assert sorted(set(told)) == sorted(saves)
    assert plane.stored[-1].kind == "leaving"
    assert not [one for one in unreported_folders(root / "a009" / "n0") if one.parts[-2] == "a001"]


def read_all(path):
    return (
        [one for _, one in reports.decode(path.read_bytes()[reports.HEADER_BYTES :])]
        if path.exists()
        else []
    )


def left_behind(root, steps=3):
    folder = folders(root, 1)[0] / "g000"
    for rank in range(RANKS):
        for step in range(steps):
            append(folder / f"r{rank:05d}.report", record(step * BATCH, rank, 2))
    return folder


def test_without_its_notes_nothing_is_told_twice_and_nobody_says_goodbye(monkeypatch, tmp_path):
    folder = left_behind(tmp_path)
    plane = Plane(acked=5)
    go_on(monkeypatch, tmp_path, plane)
    assert plane.stored == []
    assert (folder.parent / "reported").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda node: (node / "g000" / "ledger.watermarks").write_text('{"seq": 1}\n'),
        lambda node: (node / "g000" / "ledger.watermarks").write_text("[[]\n"),
        lambda node: (node / "assignment.json").write_text("{}"),
        lambda node: (node / "supervisor.json").unlink(),
        lambda node: (node / "supervisor.json").write_text(
            json.dumps({"supervisor": {"boot_id": "b", "pid": 1, "start_ticks": 1}, "tag": "t"})
        ),
        lambda node: (node / "lock").unlink(),
        lambda node: (
            (node / "g000/r00001.report").unlink(),
            os.mkfifo(node / "g000/r00001.report"),
        ),
        lambda node: (node / "g000" / "r00001.report").write_bytes(b"x" * 100),
    ],
    ids=[
        "watermarks",
        "no watermarks",
        "assignment",
        "record",
        "another boot",
        "lock",
        "pipe",
        "nonsense",
    ],
)
def test_what_cannot_be_trusted_is_left_alone(monkeypatch, tmp_path, spoil):
    folder = left_behind(tmp_path)
    (folder / "ledger.watermarks").touch()
    monkeypatch.setattr(orphan_reports, "_TRIES", 3)
    monkeypatch.setattr(orphan_reports, "_MAX_WAIT_S", 0.001)
    spoil(folder.parent)
    plane = Plane()
    go_on(monkeypatch, tmp_path, plane)
    assert plane.stored == []


def test_a_living_supervisor_is_not_spoken_for(monkeypatch, tmp_path):
    folder = left_behind(tmp_path)
    (folder / "ledger.watermarks").touch()
    monkeypatch.setattr(orphan_reports, "_TRIES", 3)
    monkeypatch.setattr(orphan_reports, "_MAX_WAIT_S", 0.001)
    plane = Plane()
    with orphan_reports._held(folder.parent) as held:
        assert held
        go_on(monkeypatch, tmp_path, plane)
    assert plane.stored == []
    go_on(monkeypatch, tmp_path, plane)
    assert plane.rows() == (Consumed(0, 0, 3 * BATCH),)


def test_only_earlier_attempts_are_asked_and_the_newest_come_first(tmp_path):
    for attempt in (1, 2, 3, 12):
        folders(tmp_path, attempt)
    (tmp_path / "a002" / "n0" / "reported").touch()
    (tmp_path / "code").mkdir()
    assert [one.parent.name for one in unreported_folders(tmp_path / "a012" / "n0")] == [
        "a003",
        "a001",
    ]
    assert unreported_folders(tmp_path / "elsewhere" / "n0") == []


def test_notes_stay_few_and_keep_the_place_to_go_on_from(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_watermarks, "_REWRITE_BYTES", 1000)
    acked = 0
    watermarks = WatermarkFile(tmp_path, lambda: acked)
    watermarks.write(LedgerWatermark(1, {0: 64}))  # before the folder is there: nobody will find it
    assert read_watermarks(tmp_path) is None
    watermarks.begin()
    for seq in range(1, 200):
        watermarks.write(LedgerWatermark(seq, {0: 64 + seq}, (Consumed(0, seq, seq + 1),)))
        acked = seq - 3
        if seq > 3:
            found = last_stored(read_watermarks(tmp_path), acked)
            assert found == LedgerWatermark(
                acked, {0: 64 + acked}, (Consumed(0, acked, acked + 1),)
            )
    watermarks.close()
    assert (tmp_path / "ledger.watermarks").stat().st_size < 2500


def test_notes_that_cannot_be_written_are_taken_away(tmp_path, monkeypatch):
    watermarks = WatermarkFile(tmp_path, lambda: 0)
    watermarks.begin()
    watermarks.write(LedgerWatermark(1, {0: 70}))
    assert read_watermarks(tmp_path) == [LedgerWatermark(1, {0: 70})]
    monkeypatch.setattr(ledger_watermarks.os, "write", lambda *_: 3)
    watermarks.write(LedgerWatermark(2, {0: 80}))
    monkeypatch.undo()
    watermarks.write(LedgerWatermark(3, {0: 90}))
    assert read_watermarks(tmp_path) is None
