"""Frames, streams and the time limits of tunnels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.tunnels.frames import (
    BadFrame,
    FrameKind,
    FrameReader,
    TunnelFrame,
    frames_of,
    resize,
    size_of,
)
from phalanx.core.tunnels.model import (
    JOIN_WITHIN_S,
    LINGER_S,
    SILENT_S,
    Tunnel,
    TunnelPurpose,
)
from phalanx.core.tunnels.streams import ByteStream, Misplaced

pytestmark = pytest.mark.unit
FRAMES = st.lists(
    st.builds(
        TunnelFrame, st.sampled_from(FrameKind), st.integers(0, 2**32 - 1), st.binary(max_size=300)
    ),
    max_size=8,
)


@given(FRAMES, st.integers(1, 50))
def test_frames_survive_any_division_of_their_bytes(frames, step):
    data = b"".join(one.encode() for one in frames)
    reader, found = FrameReader(), []
    for at in range(0, len(data), step):
        found += reader.take(data[at : at + step])
    assert found == frames


def test_bytes_that_are_no_frame_are_refused():
    with pytest.raises(BadFrame, match="no frame of kind 200"):
        FrameReader().take(bytes([200]) + bytes(6))
    with pytest.raises(BadFrame, match="at most"):
        TunnelFrame(FrameKind.INPUT, 0, bytes(1 << 16)).encode()
    with pytest.raises(BadFrame):
        size_of(TunnelFrame(FrameKind.RESIZE, 0, b"x"))


def test_data_of_any_size_is_divided_and_a_size_is_two_numbers():
    data = bytes(range(256)) * 1000
    frames = frames_of(FrameKind.OUTPUT, 3, data)
    assert b"".join(one.data for one in frames) == data
    assert all(one.encode() for one in frames)
    assert size_of(resize(50, 132)) == (50, 132)


@given(st.binary(max_size=400), st.lists(st.integers(0, 30), max_size=60), st.randoms())
def test_nothing_is_lost_or_doubled_whatever_is_repeated(data, steps, rng):
    """A sender and a reader that repeat any of their last transfers agree on the same bytes."""
    stream = ByteStream(limit=20)
    taken, read, got = 0, 0, bytearray()
    for size in steps:
        before = taken
        taken = stream.put(taken, data[taken : taken + size])
        assert taken - before <= 20
        if rng.random() < 0.5:  # its answer was lost: sent again
            assert stream.put(before, data[before:taken]) == taken
        piece = stream.read(read, 7)
        if rng.random() < 0.5:  # the same
            assert stream.read(read, 7) == piece
        got += piece
        read += len(piece)
    while piece := stream.read(read, 7):
        got += piece
        read += len(piece)
    assert bytes(got) == data[:taken]


def test_gaps_and_forgotten_bytes_are_refused():
    stream = ByteStream()
    stream.put(0, b"abc")
    with pytest.raises(Misplaced, match="bytes at 5 do not follow those up to 3"):
        stream.put(5, b"x")
    stream.read(2, 10)
    with pytest.raises(Misplaced, match="not here, but those from 2"):
        stream.read(1, 10)
    with pytest.raises(Misplaced):
        stream.read(4, 10)


def tunnel():
    purpose = TunnelPurpose(kind="exec", rank=0, command=("true",))
    return Tunnel("t", "ada", 1, 1, 0, purpose, opened_at=100.0)


def test_a_tunnel_ends_when_a_side_is_missing():
    waiting = tunnel()
    assert not waiting.check(100.0 + JOIN_WITHIN_S) and not waiting.is_over
    waiting.check(100.1 + JOIN_WITHIN_S)
    assert "supervisor of node rank 0 did not come" in waiting.why
    assert not waiting.check(100.1 + JOIN_WITHIN_S + LINGER_S)
    assert waiting.check(100.2 + JOIN_WITHIN_S + LINGER_S)
    silent = tunnel()
    silent.node_at = silent.client_at = 110.0
    silent.client_at = 200.0
    silent.check(110.1 + SILENT_S)
    assert "supervisor has been silent" in silent.why
    gone = tunnel()
    gone.node_at = 200.0
    gone.check(100.1 + SILENT_S)
    assert gone.why == "the client is gone"


def test_the_first_end_counts():
    one = tunnel()
    one.end(101.0, "")
    one.end(102.0, "later")
    assert (one.over_at, one.why) == (101.0, "")
