"""What ranks report becomes reports: once each, and for as long as a generation lasts."""

from types import SimpleNamespace

import pytest

from phalanx.core.contract import records as reports
from phalanx.core.gang.stalls import StallPolicy, StallWatch
from phalanx.core.telemetry.instruments import INSTRUMENTS
from phalanx.core.training.ledger import Consumed, merge
from phalanx.kit.clock import SystemClock
from phalanx.supervise.ranks import records
from phalanx.supervise.ranks.records import GenerationRecords
from phalanx.supervise.uplink.bulk_shipper import BulkShipper
from phalanx.supervise.uplink.link import Outbox

pytestmark = pytest.mark.unit


def opened():
    sent = []
    watch = StallWatch(StallPolicy(watch=False), 0.0)
    return GenerationRecords(0, {}, lambda make: sent.append(make(len(sent) + 1)), watch), sent


def written(path, rows):
    body = b"".join(reports.framed(row) for row in rows)
    head = bytearray(reports.header(1))
    head[reports.LENGTH_OFFSET : reports.LENGTH_OFFSET + 8] = reports.pack_length(len(body))
    path.write_bytes(bytes(head) + body)


def saved(number):
    return {"k": "checkpoint", "step": number, "path": f"/c/{number}", "t": 1}


def add(here, rank, body):
    """Add a record as it stands in a file."""
    here.add(rank, *reports.from_json(body))


def test_every_checkpoint_of_a_generation_that_lasts_for_months_is_reported(monkeypatch):
    monkeypatch.setattr(records, "_REMEMBERED", 500)
    here, sent = opened()
    num = 3 * records._REMEMBERED
    for number in range(num):
        for rank in (0, 1):  # all ranks say it
            add(here, rank, saved(number))
        add(here, 0, {"k": "removed", "path": f"/c/{number}", "t": 1})
    kinds = [one.kind for one in sent]
    assert kinds.count("checkpoint") == num == len({one.path for one in sent})
    assert len(kinds) == 2 * num
    assert len(here._reported) <= records._REMEMBERED


def test_what_was_consumed_before_a_save_is_said_before_it(tmp_path):
    """Rank 0 is read first and tells of the save; the last rows of the others go along all the same."""
    files = {rank: tmp_path / f"r{rank}.report" for rank in (0, 1)}
    for rank, file in files.items():
        row = {"k": "ledger", "epoch": 0, "lo": 4 * rank, "hi": 4 * rank + 4, "t": 1}
        written(file, [row, saved(1)])
    sent = []
    here = GenerationRecords(
        0,
        files,
        lambda make: sent.append(make(len(sent) + 1)),
        StallWatch(StallPolicy(watch=False), 0.0),
    )
    here.read()
    here.close()
    assert [one.kind for one in sent] == ["ledger", "checkpoint"]
    assert [(row.lo, row.hi) for row in sent[0].rows] == [(0, 8)]


def test_a_checkpoint_that_is_gone_again_was_there_first(tmp_path):
    """Read in one turn: told the other way round, it would count as one that can be resumed from."""
    file = tmp_path / "r0.report"
    written(file, [saved(1), saved(2), {"k": "removed", "path": "/c/1", "t": 2}, saved(3)])
    sent = []
    watch = StallWatch(StallPolicy(watch=False), 0.0)
    here = GenerationRecords(0, {0: file}, lambda make: sent.append(make(len(sent) + 1)), watch)
    here.read()
    here.close()
    told = [(one.kind, one.path) for one in sent]
    assert told.index(("checkpoint", "/c/1")) < told.index(("checkpoint_removed", "/c/1"))
    assert len(told) == 4


def test_uploads_are_reported_behind_the_checkpoint():
    here, sent = opened()
    name = "step-00000003-0123abcd"
    for record in (
        reports.CheckpointRecord(path=f"/c/{name}", name=name, step=3),
        reports.UploadingRecord(name=name, bytes=10),
        reports.UploadingRecord(name=name, bytes=0, failed=True),
        reports.UploadedRecord(name=name, bytes=10, took_s=0.5),
    ):
        here.add(0, 7, record)
    assert [one.kind for one in sent] == ["checkpoint"] + ["checkpoint_copy"] * 3
    assert [one.state for one in sent[1:]] == ["uploading", "failed", "stored"]
    assert (sent[3].name, sent[3].size_bytes, sent[3].took_s) == (name, 10, 0.5)


def test_warnings_of_a_script_come_to_an_end_and_checkpoints_do_not():
    here, sent = opened()
    for number in range(3 * records._MOST_WARNINGS):
        add(here, 0, {"k": "warn", "message": f"step {number} was slow", "t": 1})
    add(here, 0, saved(1))
    assert [one.kind for one in sent].count("warning") == records._MOST_WARNINGS
    assert sent[-1].kind == "checkpoint"


def test_what_was_consumed_is_said_once_and_in_parts():
    """On several nodes every step leaves a row of its own: to say them all again would never end."""
    here, _ = opened()
    said = []

    def consume(steps):
        for step in steps:
            for rank in (0, 1):  # this node has the first half of every batch of 96
                lo = step * 96 + rank * 24
                add(here, rank, {"k": "ledger", "epoch": 0, "lo": lo, "hi": lo + 24, "t": 1})

    def put(make):
        said.append(make(len(said) + 1))

    num = 2 * records._MOST_ROWS + 10
    consume(range(num))  # while nobody fetched anything
    assert len(here._fresh_rows) <= 4 * records._MOST_ROWS
    while here.put_ledger(put):
        pass
    consume(range(num, num + 3))
    assert here.put_ledger(put) and not here.put_ledger(put)
    assert [len(one.rows) for one in said] == [records._MOST_ROWS, records._MOST_ROWS, 10, 3]
    assert all(one.added for one in said)
    rows = merge(Consumed(one.epoch, one.lo, one.hi) for report in said for one in report.rows)
    assert rows == tuple(Consumed(0, step * 96, step * 96 + 48) for step in range(num + 3))


def test_records_that_make_no_sense_are_passed_over(tmp_path):
    """They come from a user's process: none of them may end the supervisor."""
    path = tmp_path / "r00000.report"
    rows = [
        [1, 2],
        "text",
        {},
        {"k": "step"},
        {"k": "step", "step": 1e999, "epoch": 0, "t": 1},
        {"k": "metric", "step": 1, "t": 1, "values": {"loss": 10**400}},
        {"k": "metric", "step": 1, "t": 1, "values": [1]},
        {"k": "metric", "step": 1e999, "t": 1, "values": {}},
        {"k": "guard", "step": 1, "what": 1, "origin": 2, "action": 3, "ranks": [1e999]},
        {"k": "profile"},
        {"k": 7},
        {"k": "data", "num_samples": 1e999},
        {"k": "metric", "step": 2, "t": 1, "values": {"loss": 0.5}},
    ]
    written(path, rows)
    sent = []
    here = GenerationRecords(
        0, {0: path}, lambda make: sent.append(make(1)), StallWatch(StallPolicy(watch=False), 0.0)
    )
    here.read()
    tail = records.MetricTail({0: path})
    assert [point.step for point in tail.take(100)][-1] == 2
    here.close()
    tail.close()


def test_what_was_said_last_is_queued_before_the_end_although_a_batch_is_in_flight(tmp_path):
    """Whoever hears that the ranks have ended finds their last values, and a whole account."""
    here, _ = opened()
    metrics = records.MetricTail({})
    generation = SimpleNamespace(number=0, streams=(), leads=True, records=here, metrics=metrics)
    outbox = Outbox(tmp_path)
    shipper = BulkShipper(outbox, SystemClock())
    shipper.add(generation)

    def speak(step):
        add(here, 0, {"k": "ledger", "epoch": 0, "lo": step, "hi": step + 1, "t": 1})
        add(metrics, 0, {"k": "metric", "step": step, "values": {"loss": 0.5}, "t": 1})

    speak(0)
    assert shipper.ship()
    speak(1)
    assert not shipper.ship()
    assert [one.kind for one in outbox.pending()] == ["ledger", "metrics"]
    shipper.ship_now()
    assert [one.kind for one in outbox.pending()] == ["ledger", "metrics"] * 2


def test_every_kind_of_record_is_handled_or_stays_on_the_node_for_a_reason():
    handled, kept = set(records._HANDLERS), set(records.NOT_FORWARDED)
    assert not handled & kept
    assert handled | kept == set(reports._KINDS.values())
    assert all(records.NOT_FORWARDED.values())


def test_what_ranks_measure_beside_metrics_becomes_metrics():
    found, sent = [], []
    here = GenerationRecords(
        0,
        {},
        lambda make: sent.append(make(len(sent) + 1)),
        StallWatch(StallPolicy(watch=False), 0.0),
        measured=lambda rank, at, record: found.append((rank, record.step, dict(record.values))),
    )
    add(here, 4, {"k": "step", "step": 7, "t": 1})
    add(here, 4, {"k": "stragglers", "scores": [1.0, 0.5], "ranks": [1], "t": 1})
    add(here, 4, {"k": "shares", "shares": [0.6, 0.4], "compute_s": [1.0, 2.0], "t": 1})
    add(here, 5, {"k": "sync", "step": 9, "fragment": 0, "bytes": 80, "seconds": 0.02, "t": 1})
    add(here, 4, {"k": "compression", "step": 9, "method": "bf16", "median_s": {"none": 2}, "t": 1})
    assert found[:4] == [
        (4, 7, {"straggler_score": 1.0}),
        (5, 7, {"straggler_score": 0.5}),
        (4, 7, {"batch_share": 0.6}),
        (5, 7, {"batch_share": 0.4}),
    ]
    rank, step, values = found[4]
    assert (rank, step, values["weight_sync_bytes"]) == (5, 9, 80.0)
    assert values["weight_sync_seconds"] == 0.02
    assert {name.partition("|")[0] for name in values} <= set(INSTRUMENTS)
    assert "compression auto chose bf16" in sent[-1].message


def test_each_record_is_decoded_by_one_of_the_two_readers(tmp_path, monkeypatch):
    file = tmp_path / "r0.report"
    metric = {"k": "metric", "step": 3, "values": {"loss": "nan", "ok": 0.5}, "t": 7}
    written(file, [{"k": "step", "step": 3, "t": 6}, metric])
    decoded, usual = [], reports.parse

    def parse(frame):
        decoded.append(frame)
        return usual(frame)

    monkeypatch.setattr(reports, "parse", parse)
    sent = []
    watch = StallWatch(StallPolicy(watch=False), 0.0)
    here = GenerationRecords(0, {0: file}, lambda make: sent.append(make(1)), watch)
    metrics = records.MetricTail({0: file}, here.warn_not_finite)
    here.read()
    assert metrics.take(10) == [reports.MetricPoint(0, 3, 7, {"ok": 0.5})]
    assert len(decoded) == 2
    assert [one.message for one in sent] == ["metric loss is not finite: nan at step 3"]
    here.close()
    metrics.close()


def test_a_report_of_a_trial_follows_the_checkpoint_that_it_names():
    here, sent = opened()
    add(here, 0, {"k": "report", "unit": 1, "value": 0.5, "metrics": {"loss": 0.5}, "t": 7})
    add(here, 0, saved(9))
    last = {"unit": 3, "value": "nan", "checkpoint": "/c/9", "final": True}
    add(here, 0, {"k": "report", **last, "t": 8})
    assert [one.kind for one in sent] == ["trial", "checkpoint", "trial"]
    assert (sent[0].unit, sent[0].value, sent[0].metrics) == (1, 0.5, {"loss": 0.5})
    assert {name: getattr(sent[2], name) for name in last} == last


@pytest.mark.parametrize(
    "wrong", [{"unit": -1}, {"unit": 1 << 63}, {"value": "worse"}, {"metrics": {"x": "much"}}]
)
def test_a_report_that_makes_no_sense_is_passed_over(wrong, tmp_path):
    file = tmp_path / "r0.report"
    written(file, [{"k": "report", "unit": 1, "value": 0.5, "t": 7} | wrong, saved(1)])
    sent = []
    watch = StallWatch(StallPolicy(watch=False), 0.0)
    here = GenerationRecords(0, {0: file}, lambda make: sent.append(make(len(sent) + 1)), watch)
    here.read()
    here.close()
    assert [one.kind for one in sent] == ["checkpoint"]


def test_the_seed_of_the_leading_role_is_reported(tmp_path):
    file = tmp_path / "r0.report"
    seeds = (7, 2**64 - 1, -3, 10**30, "x", None)
    written(file, [{"k": "seed", "seed": seed, "t": 1} for seed in seeds])
    for kind, expected in (
        (GenerationRecords, ["7", str(2**64 - 1), "-3"]),
        (records.SideRecords, []),
    ):
        sent = []
        watch = StallWatch(StallPolicy(watch=False), 0.0)
        here = kind(0, {0: file}, lambda make, to=sent: to.append(make(len(to) + 1)), watch)
        here.read()
        here.close()
        assert [(one.kind, one.seed) for one in sent] == [("seed", one) for one in expected]


def test_parameters_of_a_script_are_reported_flat_and_bounded():
    here, sent = opened()
    add(here, 0, {"k": "params", "values": {"lr": 0.1, "deep": {"token": "abc"}}, "t": 1})
    add(here, 0, {"k": "params", "values": {"x": "y" * 900, "n": None, "": 1}, "t": 2})
    assert [dict(one.values) for one in sent if one.kind == "params"] == [
        {"deep.token": "(withheld)", "lr": 0.1},
        {"n": None, "x": "y" * 500},
    ]
