"""Captured streams, messages with descriptors, free ports."""

import os
import random
import socket

import pytest

from phalanx.launch import ports
from phalanx.launch.capture import TAIL_BYTES, Capture, open_append, read_available
from phalanx.launch.wire import Channel, pair

pytestmark = pytest.mark.unit


def test_bytes_arrive_as_they_are(tmp_path):
    path = tmp_path / "out"
    descriptor, append = open_append(path)
    capture = Capture(append)
    data = bytes(range(256)) * 2000
    capture.take(data)
    capture.take(b"end")
    os.close(descriptor)
    assert path.read_bytes() == data + b"end"
    assert capture.num_written == len(data) + 3
    assert bytes(capture.tail) == (data + b"end")[-TAIL_BYTES:]


def test_what_the_disk_refuses_is_counted_and_writing_goes_on():
    stored = bytearray()
    room = [4]

    def append(data):
        taken = min(len(data), room[0])
        if taken == 0:
            raise OSError(28, "No space left on device")
        room[0] -= taken
        stored.extend(data[:taken])
        return taken

    capture = Capture(append)
    capture.take(b"123456")
    capture.take(b"78")
    room[0] = 100
    capture.take(b"90")
    assert bytes(stored) == b"123490"
    assert (capture.num_written, capture.num_dropped) == (6, 4)
    assert capture.error == "No space left on device"
    assert bytes(capture.tail) == b"1234567890"


def test_reading_never_waits():
    read, write = os.pipe()
    os.set_blocking(read, False)
    assert read_available(read) == (b"", False)
    os.write(write, b"x")
    assert read_available(read) == (b"x", False)
    os.close(write)
    assert read_available(read) == (b"", True)
    os.close(read)


def test_a_message_carries_descriptors_and_any_environment():
    ours, theirs = pair()
    peer = Channel(theirs)
    read, write = os.pipe()
    body = {"op": "spawn", "env": {"ODD": os.fsdecode(b"\xff\xfe"), "LONG": "x" * 10_000}}
    ours.send(body, [write])
    os.close(write)
    message = peer.receive()
    assert message.body == body
    os.write(message.descriptors[0], b"hello")
    assert not os.get_inheritable(message.descriptors[0])
    os.close(message.descriptors[0])
    assert os.read(read, 10) == b"hello"
    os.close(read)
    ours.close()
    assert peer.receive() is None
    peer.close()


def test_half_a_message_is_the_end():
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    ours.sendall(b"\x10\0\0\0{")
    ours.close()
    assert channel.receive() is None
    channel.close()


def test_free_ports_stay_below_the_ephemeral_range(monkeypatch):
    rng = random.Random(1)
    found = {ports.free_port(rng) for _ in range(50)}
    assert max(found) < max(20_001, ports.ephemeral_floor())
    assert len(found) > 40


@pytest.mark.parametrize("floor", [1024, 20_000, 20_001])
def test_an_ephemeral_range_without_room_below_leaves_many_ports(monkeypatch, floor):
    monkeypatch.setattr(ports, "ephemeral_floor", lambda: floor)
    rng = random.Random(1)
    assert len({ports.free_port(rng) for _ in range(50)}) > 40


def test_a_port_in_use_is_not_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        class Stubborn(random.Random):
            def __init__(self):
                super().__init__(3)
                self.first = True

            def randrange(self, *args):
                if self.first:
                    self.first = False
                    return port
                return super().randrange(*args)

        assert ports.free_port(Stubborn()) != port
