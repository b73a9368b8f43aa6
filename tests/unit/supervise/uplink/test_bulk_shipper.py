"""Output of ranks on its way: all of it, or the number of bytes that are missing, and where."""

import base64
import errno
import os
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.kit.clock import ManualClock
from phalanx.launch.capture import Capture, open_append
from phalanx.supervise.ranks.rank import Stream
from phalanx.supervise.uplink import bulk_shipper
from phalanx.supervise.uplink.bulk_shipper import BulkShipper
from phalanx.supervise.uplink.link import Outbox

pytestmark = pytest.mark.unit


class Disk:
    """A file that refuses bytes while `full`."""

    def __init__(self, path):
        self.path, self.full = path, False
        self.descriptor, self._append = open_append(path)

    def append(self, data):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._append(data)


class Road:
    """One generation of streams, their shipper, and what arrived."""

    def __init__(self, folder, num=1, limit=None):
        self.disks = [Disk(folder / f"r{rank}.out") for rank in range(num)]
        self.streams = [
            Stream(rank, "out", disk.path, Capture(disk.append), disk.descriptor)
            for rank, disk in enumerate(self.disks)
        ]
        self.outbox = Outbox(folder)
        self.shipper = BulkShipper(self.outbox, ManualClock(), limit)
        metrics = SimpleNamespace(put=lambda *_: False, trim=lambda _tails: [])
        records = SimpleNamespace(put_ledger=lambda _put: False, tails={})
        self.shipper.add(
            SimpleNamespace(
                number=0, streams=self.streams, records=records, metrics=metrics, leads=True
            )
        )
        self.arrived = []

    def turn(self):
        self.shipper.ship()
        for one in self.outbox.pending():
            if one.kind == "log":
                self.arrived.append(one)
            self.outbox.acknowledge(one.seq)

    def all(self):
        while self.shipper.backlog or not self.outbox.empty:
            self.turn()
        self.turn()

    def close(self):
        for stream in self.streams:
            stream.closed = True
        self.all()
        for disk in self.disks:
            os.close(disk.descriptor)

    def story(self, rank=0):
        """Bytes, and numbers of missing ones, in the order of the stream."""
        told, end = [], 0
        for one in (one for one in self.arrived if one.rank == rank):
            if one.offset > end:
                told.append(one.offset - end)
            if one.dropped:
                told.append(one.dropped)
            data = base64.b64decode(one.data)
            if data and told and isinstance(told[-1], bytes):
                told[-1] += data
            elif data:
                told.append(data)
            end = one.offset + len(data)
        return told


def test_lost_bytes_are_counted_where_they_were_lost(tmp_path):
    road = Road(tmp_path)
    (disk,), (stream,) = road.disks, road.streams
    for text, full in ((b"one", 0), (b"lost", 1), (b"gone", 1), (b"two", 0), (b"last", 1)):
        disk.full = bool(full)
        stream.capture.take(text)
    road.close()
    assert road.story() == [b"one", 8, b"two", 4]
    assert road.arrived[-1].end and road.arrived[-1].offset == 6


def test_all_is_lost_and_said(tmp_path):
    road = Road(tmp_path)
    road.disks[0].full = True
    road.streams[0].capture.take(b"never")
    road.turn()
    road.turn()
    assert road.arrived == []  # more may come
    road.close()
    assert road.story() == [5]


def test_what_would_be_deleted_at_once_is_passed_over(tmp_path):
    road = Road(tmp_path, num=2, limit=1000)
    road.streams[0].capture.take(b"a" * 100)
    road.turn()
    road.streams[0].capture.take(b"b" * 3000)
    road.streams[1].capture.take(b"c" * 30)
    road.close()
    assert road.story() == [b"a" * 100, 2750, b"b" * 250]
    assert road.story(1) == [b"c" * 30]
    # The file has them: its beginning is not freed.
    assert road.streams[0].passed_at == 100


def test_a_carrier_without_time_says_what_it_leaves(tmp_path):
    road = Road(tmp_path)
    road.streams[0].capture.take(b"x" * 5000)
    road.shipper.give_up()
    road.shipper.close()
    road.turn()
    assert road.story() == [5000] and road.arrived[-1].end
    os.close(road.disks[0].descriptor)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_every_byte_arrives_or_is_counted(tmp_path_factory, seed):
    rng = random.Random(seed)
    road = Road(tmp_path_factory.mktemp("road"), num=2, limit=rng.choice([None, 4000]))
    written = [0, 0]
    for _ in range(60):
        rank = rng.randrange(2)
        road.disks[rank].full = rng.random() < 0.2
        text = bytes(rng.randrange(900))
        road.streams[rank].capture.take(text)
        written[rank] += len(text)
        if rng.random() < 0.3:
            road.turn()
    road.close()
    for rank in (0, 1):
        counted = (one if isinstance(one, int) else len(one) for one in road.story(rank))
        assert sum(counted) == written[rank]


def test_a_batch_that_is_not_stored_may_be_read_again(tmp_path, monkeypatch):
    """The disk space of shipped output is freed only once all of it is stored."""
    monkeypatch.setattr(bulk_shipper, "LOG_BYTES", 10)
    trimmed = []
    monkeypatch.setattr(Stream, "trim", lambda stream: trimmed.append(stream.num_sent))
    road = Road(tmp_path)
    road.streams[0].capture.take(b"x" * 15)
    road.shipper.ship()
    road.shipper.ship()
    assert trimmed == [0]  # not while a batch is in flight
    road.outbox.acknowledge(1)
    road.shipper.ship()
    assert trimmed == [0, 10]
    os.close(road.disks[0].descriptor)
