"""Numbered reports: in order, until acknowledged, on disk while nobody listens."""

import pytest

from phalanx.schemas.wire.supervision import (
    CheckpointReport,
    LeavingReport,
    LogReport,
    TrialReport,
    WarningReport,
)
from phalanx.supervise.uplink.link import MAX_WAITING, Outbox

pytestmark = pytest.mark.unit


def warning(text):
    return lambda seq: WarningReport(seq=seq, generation=0, message=text, at=1)


def log(data):
    return lambda seq: LogReport(seq=seq, generation=0, rank=0, stream="out", offset=0, data=data)


def test_numbers_rise_and_acknowledged_reports_go(tmp_path):
    outbox = Outbox(tmp_path / "spool")
    for text in "abc":
        outbox.put(warning(text))
    assert [one.seq for one in outbox.pending()] == [1, 2, 3]
    assert outbox.acknowledge(2)
    assert not outbox.acknowledge(1)  # late
    assert [one.seq for one in outbox.pending()] == [3]
    assert outbox.acknowledge(3)
    assert outbox.empty


def test_one_bulk_batch_at_a_time(tmp_path):
    outbox = Outbox(tmp_path / "spool")
    assert not outbox.bulk_in_flight
    outbox.put_bulk(log("x"))
    outbox.put_bulk(log("y"))
    outbox.put(warning("w"))
    outbox.acknowledge(1)
    assert outbox.bulk_in_flight
    outbox.acknowledge(2)
    assert not outbox.bulk_in_flight


def test_a_batch_has_a_size(tmp_path):
    outbox = Outbox(tmp_path / "spool")
    for _ in range(5):
        outbox.put_bulk(log("x" * 400_000))
    assert len(outbox.pending()) == 3


def test_what_waits_lies_on_disk_while_the_control_plane_is_away(tmp_path):
    outbox = Outbox(tmp_path / "spool")
    outbox.put(warning("before"))
    outbox.put_bulk(log("bulk"))
    outbox.control_plane_away()
    outbox.control_plane_away()
    outbox.put(warning("during"))
    path = tmp_path / "spool" / "reports.jsonl"
    kept = [WarningReport.model_validate_json(line) for line in path.read_text().splitlines()]
    assert [one.message for one in kept] == ["before", "during"]
    outbox.acknowledge(3)
    assert not path.exists()
    outbox.put(lambda seq: LeavingReport(seq=seq))
    assert not path.exists()


def test_memory_is_bounded(tmp_path):
    outbox = Outbox(tmp_path / "spool")
    for _ in range(MAX_WAITING + 10):
        outbox.put(warning("x"))
    assert outbox.pending()[0].seq == 11


def test_results_and_checkpoints_that_are_not_acknowledged_go_into_the_exit_record(tmp_path):
    outbox = Outbox(tmp_path / "spool")
    common = {"generation": 0, "at": 1}
    outbox.put(lambda seq: TrialReport(seq=seq, unit=1, value=0.5, metrics={}, **common))
    outbox.put(warning("between"))
    outbox.put(lambda seq: CheckpointReport(seq=seq, step=2, path="/step-2", **common))
    outbox.put(lambda seq: TrialReport(seq=seq, unit=2, value=0.4, metrics={}, **common))
    outbox.acknowledge(1)
    assert [one.kind for one in outbox.results()] == ["checkpoint", "trial"]
