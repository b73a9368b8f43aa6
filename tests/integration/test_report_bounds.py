"""Files that ranks and their output leave do not grow with the length of a run."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.core.contract.records import MetricRecord
from phalanx.kit.clock import SystemClock
from phalanx.launch import space
from phalanx.launch.capture import Capture, open_append
from phalanx.supervise.ranks import rank as rank_module
from phalanx.supervise.ranks import records
from phalanx.supervise.ranks.rank import Stream
from phalanx.supervise.ranks.records import MetricTail, RecordTail
from phalanx.supervise.uplink.bulk_shipper import BulkShipper
from phalanx.train.gang.report import ReportFile

pytestmark = pytest.mark.integration
NUM_RECORDS = 30_000
PAD = "x" * 400


def used_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def needs_holes(folder: Path) -> None:
    path = folder / "probe"
    path.write_bytes(bytes(2 * space.BLOCK_BYTES))
    descriptor = os.open(path, os.O_RDWR)
    try:
        space.punch(descriptor, 0, space.BLOCK_BYTES)
    except OSError:
        pytest.skip("this file system has no holes")
    finally:
        os.close(descriptor)


def a_long_run(path: Path, trim: bool) -> tuple[int, int, list[int]]:
    """(most blocks in use, apparent size, steps of the metrics that came through)."""
    report = ReportFile(path, now=lambda: 1)
    tail, metrics = RecordTail(path), MetricTail({0: path})
    most, seen, steps = 0, 0, []
    for step in range(NUM_RECORDS):
        report.write(MetricRecord(step=step, values={"loss": 0.5, PAD: 0.0}))
        if step % 1000 == 999:
            while found := tail.read():
                seen += len(found)
            while points := metrics.take(2000):
                steps += [point.step for point in points]
            if trim:
                assert metrics.trim({0: tail}) == []
            most = max(most, used_bytes(path))
    report.close()
    metrics.close()
    tail.close()
    assert (seen, report.dropped) == (NUM_RECORDS, 0)
    return most, path.stat().st_size, steps


def test_a_report_file_stays_small_and_nothing_is_lost(tmp_path):
    needs_holes(tmp_path)
    most, size, steps = a_long_run(tmp_path / "r", trim=True)
    assert steps == list(range(NUM_RECORDS))
    assert size > 12 << 20
    assert most < records.TRIM_BYTES + (3 << 20)


def test_without_trimming_it_would_hold_everything(tmp_path):
    most, size, _ = a_long_run(tmp_path / "r", trim=False)
    assert most >= size > 12 << 20


def test_metrics_that_nobody_fetches_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BACKLOG_BYTES", 1 << 20)
    path = tmp_path / "r"
    report = ReportFile(path, now=lambda: 1)
    tail, metrics = RecordTail(path), MetricTail({0: path})
    for step in range(4000):
        report.write(MetricRecord(step=step, values={"loss": 0.5, PAD: 0.0}))
    while tail.read():
        pass
    assert metrics.trim({0: tail}) == [0]
    report.write(MetricRecord(step=4000, values={"loss": 0.5}))
    tail.read()
    assert metrics.trim({0: tail}) == []
    assert [point.step for point in metrics.take(10)] == [4000]
    report.close()
    metrics.close()
    tail.close()


def test_output_that_was_carried_away_goes_but_for_the_last(tmp_path, monkeypatch):
    needs_holes(tmp_path)
    monkeypatch.setattr(rank_module, "LOG_KEPT_BYTES", 4 << 20)
    path = tmp_path / "out"
    descriptor, append = open_append(path)
    stream = Stream(0, "out", path, Capture(append), descriptor)
    carried = 0
    for number in range(400):
        stream.capture.take(bytes([65 + number % 26]) * 100_000)
        while data := stream.read_back(1 << 20):
            assert set(data) <= set(range(65, 91))  # never a hole
            stream.num_sent += len(data)
            carried += len(data)
        stream.trim()
    os.close(descriptor)
    assert carried == 40_000_000 == path.stat().st_size
    assert used_bytes(path) < 8 << 20
    assert path.read_bytes()[-(4 << 20) :].count(0) == 0


def test_the_supervisor_trims_also_while_nobody_takes_its_bulk(tmp_path):
    """A control plane that is away must not make files grow that were read long ago."""

    class Away:
        bulk_in_flight = True

        def __init__(self):
            self.said = []

        def put(self, make):
            self.said.append(make(1))

    class Generation:
        number = 0
        streams = ()
        metrics = SimpleNamespace(trim=lambda tails: [3])
        records = SimpleNamespace(tails={})

    outbox = Away()
    shipper = BulkShipper(outbox, SystemClock())
    shipper.add(Generation())
    assert shipper.ship() is False
    assert shipper.ship() is False
    assert [(one.rank, "dropped" in one.message) for one in outbox.said] == [(3, True)]
