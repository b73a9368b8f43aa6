"""Frames of a tunnel: kind, channel and data. The control plane passes their bytes on unread."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

MAX_FRAME_BYTES = 1 << 16
"""Most data of one frame."""
_HEAD = struct.Struct("!BIH")
_HEAD_BYTES = _HEAD.size


class FrameKind(IntEnum):
    """What a frame carries. A command has channel 0, each connection a channel of its own."""

    OPEN = 1  # to the node: connect the channel
    INPUT = 2  # to the node: bytes for the command or connection
    OUTPUT = 3  # from the node: what it printed or sent
    ERRORS = 4  # from the node: what the command printed as errors
    CLOSE = 5  # either way: no more bytes of this channel in this direction
    RESET = 6  # either way: the channel is over; the data of one from the node says why
    RESIZE = 7  # to the node: rows and columns of the terminal
    EXITED = 8  # from the node: the exit code of the command
    REFUSED = 9  # from the node: why nothing was started


class BadFrame(ValueError):
    """Bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class TunnelFrame:
    """One frame."""

    kind: FrameKind
    channel: int = 0
    data: bytes = b""

    def encode(self) -> bytes:
        """Its bytes. Raises BadFrame where it has too much data."""
        if len(self.data) >= MAX_FRAME_BYTES:
            raise BadFrame(f"a frame has at most {MAX_FRAME_BYTES - 1} bytes")
        return _HEAD.pack(self.kind, self.channel, len(self.data)) + self.data

    @property
    def text(self) -> str:
        """The data as text for people."""
        return self.data.decode(errors="replace")

    @property
    def number(self) -> int:
        """The data as a number, as of an exit code; -1 where it is none."""
        return int(self.data) if self.data.isdigit() else -1


def frames_of(kind: FrameKind, channel: int, data: bytes) -> list[TunnelFrame]:
    """Frames for data of any size."""
    step = MAX_FRAME_BYTES // 2
    return [TunnelFrame(kind, channel, data[at : at + step]) for at in range(0, len(data), step)]


def resize(rows: int, columns: int) -> TunnelFrame:
    """The size of a terminal."""
    return TunnelFrame(FrameKind.RESIZE, 0, struct.pack("!HH", min(rows, 9999), min(columns, 9999)))


def size_of(frame: TunnelFrame) -> tuple[int, int]:
    """Rows and columns of a `resize`. Raises BadFrame."""
    if len(frame.data) != 4:
        raise BadFrame("a size has two numbers")
    rows, columns = struct.unpack("!HH", frame.data)
    return rows, columns


class FrameReader:
    """Puts frames together from pieces of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> list[TunnelFrame]:
        """The frames that are complete with this piece. Raises BadFrame."""
        self._rest += data
        found = []
        while len(self._rest) >= _HEAD_BYTES:
            kind, channel, size = _HEAD.unpack_from(self._rest)
            if len(self._rest) < _HEAD_BYTES + size:
                break
            try:
                known = FrameKind(kind)
            except ValueError:
                raise BadFrame(f"there is no frame of kind {kind}") from None
            body = bytes(self._rest[_HEAD_BYTES : _HEAD_BYTES + size])
            found.append(TunnelFrame(known, channel, body))
            del self._rest[: _HEAD_BYTES + size]
        return found
