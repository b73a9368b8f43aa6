"""The layout of TFRecord files, and the `tf.train.Example` messages in them, without TensorFlow.

A record is, little endian: u64 length, u32 masked CRC-32C of those eight bytes, the data, u32 masked
CRC-32C of the data. Every CRC is checked: of the length when a file is scanned, of the data when it is
read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, BinaryIO

import numpy as np

from phalanx.errors import DataCorrupt
from phalanx.train.data.readers.layouts.columns import Array

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_SHORT = 256
# Longer data is cut into lanes of 2 to this power bytes, which are worked on side by side.
_LANE_POWER = 6
_MAX_VARINT = 10
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x9c", b"\x78\xda")


# -- CRC-32C --------------------------------------------------------------------------------------


def _byte_table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE = _byte_table()
_PLAIN = [int(one) for one in _TABLE]


def _apply(operator: Array, values: Array) -> Array:
    found: Array = operator[0][values & 255] ^ operator[1][(values >> 8) & 255]
    found ^= operator[2][(values >> 16) & 255] ^ operator[3][values >> 24]
    return found


@cache
def _zeros(power: int) -> Array:
    """What 2^power zero bytes do to a register, as four tables, one for each of its bytes."""
    if power == 0:
        places = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
        return np.asarray(_TABLE[places & 255] ^ (places >> 8))
    half = _zeros(power - 1)
    return np.stack([_apply(half, part) for part in half])


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of data."""
    size = len(data)
    if size < _SHORT:
        register = _ONES
        for byte in data:
            register = _PLAIN[(register ^ byte) & 255] ^ (register >> 8)
        return register ^ _ONES
    lane = 1 << _LANE_POWER
    num_lanes = 1 << max(0, (-(-size // lane) - 1).bit_length())
    # Zeros in front change nothing while the register is zero; what it begins with is added below.
    padded = np.zeros(num_lanes * lane, np.uint8)
    padded[len(padded) - size :] = np.frombuffer(data, np.uint8)
    columns = np.ascontiguousarray(padded.reshape(num_lanes, lane).T).astype(np.uint32)
    register_of = np.zeros(num_lanes, np.uint32)
    for column in columns:
        register_of = _TABLE[(register_of ^ column) & 255] ^ (register_of >> 8)
    power = _LANE_POWER
    while len(register_of) > 1:
        register_of = _apply(_zeros(power), register_of[0::2]) ^ register_of[1::2]
        power += 1
    begun = np.array([_ONES], np.uint32)
    for bit in range(size.bit_length()):
        if size >> bit & 1:
            begun = _apply(_zeros(bit), begun)
    return int(register_of[0]) ^ int(begun[0]) ^ _ONES


def masked(crc: int) -> int:
    """The form in which a CRC stands in a file."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ONES


# -- records --------------------------------------------------------------------------------------


def scan_records(file: BinaryIO, shard: str) -> list[tuple[int, int]]:
    """Offset and size of the data of each record, from the headers. Raises DataCorrupt."""
    size = file.seek(0, 2)
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(_HEAD.size)
        if at == 0 and (head[:2] == _GZIP or (head[:2] in _ZLIB and not _good(head))):
            raise DataCorrupt(
                f"{shard} is a compressed TFRecord file",
                "decompress it: compressed files allow no random access",
            )
        if len(head) < _HEAD.size:
            raise DataCorrupt(f"{shard} is cut off at byte {size}, in the head of a record")
        if not _good(head):
            raise DataCorrupt(f"{shard}: the length at byte {at} does not match its CRC")
        length = _HEAD.unpack(head)[0]
        end = at + _HEAD.size + length + _CRC.size
        if end > size:
            raise DataCorrupt(f"{shard} is cut off at byte {size}, in record {len(found)}")
        found.append((at + _HEAD.size, length))
        at = end
    return found


def _good(head: bytes) -> bool:
    return len(head) == _HEAD.size and _HEAD.unpack(head)[1] == masked(crc32c(head[:8]))


def read_record(read_at: Callable[[int, int], bytes], at: int, size: int, where: str) -> bytes:
    """The data of one record, compared with its CRC. Raises DataCorrupt."""
    data = read_at(at, size + _CRC.size)
    if len(data) != size + _CRC.size or _CRC.unpack_from(data, size)[0] != masked(
        crc32c(data[:size])
    ):
        raise DataCorrupt(f"{where}: the record at byte {at} does not match its CRC")
    return data[:size]


# -- tf.train.Example -----------------------------------------------------------------------------


def parse_example(data: bytes) -> dict[str, Any]:
    """The features of a `tf.train.Example`: lists of bytes, float32 or int64 arrays. Raises ValueError."""
    found: dict[str, Any] = {}
    for features in _messages(data, 1):
        for entry in _messages(features, 1):
            name, feature = "", b""
            for number, kind, value in _fields(entry):
                if number == 1 and kind == 2:
                    name = bytes(value).decode()
                elif number == 2 and kind == 2:
                    feature = value
            found[name] = _feature(feature)
    return found


def _feature(data: bytes) -> Any:
    found: Any = []
    for number, kind, value in _fields(data):
        if kind != 2:
            raise ValueError("a feature holds no list")
        if number == 1:
            found = _messages(value, 1)
        elif number == 2:
            found = _floats(value)
        elif number == 3:
            found = _whole_numbers(value)
    return found


def _messages(data: bytes, wanted: int) -> list[bytes]:
    return [value for number, kind, value in _fields(data) if number == wanted and kind == 2]


def _floats(data: bytes) -> Array:
    parts = [value for number, kind, value in _fields(data) if number == 1 and kind in (2, 5)]
    return np.frombuffer(b"".join(parts), "<f4").astype(np.float32)


def _whole_numbers(data: bytes) -> Array:
    found: list[int] = []
    for number, kind, value in _fields(data):
        if number == 1 and kind == 0:
            found.append(value)
        elif number == 1 and kind == 2:
            at = 0
            while at < len(value):
                one, at = _varint(value, at)
                found.append(one)
    return np.array(found, np.uint64).astype(np.int64)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Triples of (field number, wire type, value) of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                size, at = _varint(data, at)
            if size < 0 or at + size > len(data):
                raise ValueError("not a protobuf message")
            value, at = data[at : at + size], at + size
        yield number, kind, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value & (1 << 64) - 1, at + count + 1
    raise ValueError("not a protobuf message")
