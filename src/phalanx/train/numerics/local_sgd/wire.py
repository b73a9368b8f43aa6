"""Messages between workers and servers: a length, then a state in the format of checkpoint files."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from phalanx.checkpoint import tensorfile
from phalanx.train.state import tree

_LENGTH = struct.Struct("<Q")
LARGEST_BYTES = 1 << 36
_SMALL_BYTES = 1 << 16
_HEAR_OUT_S = 10.0


def send(peer: socket.socket, message: Any) -> None:
    """Send one message: plain values and tensors. Raises OSError."""
    data = encode(message)
    peer.sendall(_LENGTH.pack(len(data)))
    peer.sendall(data)


class MessageTooLarge(ConnectionError):
    """A message is larger than the limit."""


def receive(peer: socket.socket, most: int = LARGEST_BYTES) -> Any:
    """Receive a message. Raises ConnectionError for a closed peer, MessageTooLarge, CheckpointCorrupt."""
    (length,) = _LENGTH.unpack(_exactly(peer, _LENGTH.size))
    if length > most:
        raise MessageTooLarge(f"a message of {length} bytes, at most {most} were expected")
    return decode(_exactly(peer, length))


def refuse(peer: socket.socket, why: str) -> None:
    """Refuse, then read until the peer closes: a connection closed earlier would lose the answer.

    Raises OSError.
    """
    send(peer, {"refused": why})
    peer.shutdown(socket.SHUT_WR)
    until = time.monotonic() + _HEAR_OUT_S
    while (left_s := until - time.monotonic()) > 0:
        peer.settimeout(left_s)
        if not peer.recv(_SMALL_BYTES):
            return


def encode(message: Any) -> bytes:
    """Encode a message. Raises TrainingError for values that would need a pickle."""
    body, blobs = tree.flatten(message)
    return b"".join(bytes(piece) for piece in tensorfile.lay_out(body, blobs))


def decode(data: bytearray) -> Any:
    """Decode a message; every tensor has its own memory. Raises CheckpointCorrupt."""
    body, blobs = tensorfile.parse(data, "a message")
    return tree.unflatten(body, blobs, "a message")


def _exactly(peer: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        got = peer.recv_into(view[at:])
        if not got:
            raise ConnectionError("Connection closed by peer")
        at += got
    return data
