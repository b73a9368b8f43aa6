"""Tensor files: what the safetensors library and this package read of what this package writes."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from phalanx.checkpoint import tensorfile
from phalanx.checkpoint.tensorfile import TensorBytes, TensorRegion
from phalanx.errors import CheckpointCorrupt

pytestmark = pytest.mark.unit


def file_of(tree: Any, blobs: list[TensorBytes]) -> bytearray:
    return bytearray(b"".join(bytes(piece) for piece in tensorfile.lay_out(tree, blobs)))


def floats(*values: float, part: TensorRegion | None = None) -> TensorBytes:
    data = struct.pack(f"<{len(values)}f", *values)
    return TensorBytes("float32", (len(values),), data, len(data), part)


TREE = {"state": {"model": {"w": {"$tensor": 0}, "b": [{"$tensor": 1}]}}, "rng": "00"}


def test_the_safetensors_library_opens_a_shard_and_finds_equal_tensors(tmp_path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    own = pytest.importorskip("safetensors")
    blobs = [
        floats(*map(float, range(100))),
        TensorBytes("int64", (), struct.pack("<q", -5), 8),
        TensorBytes("bool", (3,), b"\1\0\1", 3),
        TensorBytes("float32", (0, 4), b"", 0),
        TensorBytes("complex128", (2,), struct.pack("<4d", 1, 2, 3, 4), 32),
    ]
    path = tmp_path / "state.tensors"
    path.write_bytes(file_of(TREE, blobs))
    found = library.load_file(path)
    assert found["state.model.w"].tolist() == list(map(float, range(100)))
    assert found["state.model.b.0"].tolist() == -5
    assert found["tensor.2"].tolist() == [True, False, True]
    assert found["tensor.3"].shape == (0, 4)
    assert found["tensor.4"].tobytes() == blobs[4].data
    with own.safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["phalanx"])["tree"] == TREE


def test_what_is_written_is_read_back() -> None:
    whole = TensorRegion(0, (2,), (0,))
    second = TensorRegion(7, (5,), (3,))
    data = file_of(TREE, [floats(1.0, 2.0, part=whole), floats(8.0, 9.0, part=second)])
    tree, entries = tensorfile.read_header(tensorfile._InMemory(data), "x")
    assert tree == TREE and [one.part for one in entries] == [whole, second]
    assert all(one.at % tensorfile.ALIGN == 0 for one in entries)
    _, blobs = tensorfile.parse(data, "x")
    assert [bytes(one.data) for one in blobs] == [
        struct.pack("<2f", 1, 2),
        struct.pack("<2f", 8, 9),
    ]


def test_names_say_where_a_tensor_belongs_and_are_never_given_twice() -> None:
    tree = {"__metadata__": {"$tensor": 0}, "w": {"$tensor": 1}, "tied": {"$tensor": 1}}
    blobs = [
        floats(1.0),
        floats(1.0, part=TensorRegion(1, (4,), (0,))),
        floats(1.0, part=TensorRegion(1, (4,), (2,))),
        floats(1.0, part=TensorRegion(1, (4,), (2,))),
        floats(1.0, part=TensorRegion(9, (1,), (0,))),
    ]
    data = file_of(tree, blobs)
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    rows = json.loads(header["__metadata__"]["phalanx"])["tensors"]
    assert [row["name"] for row in rows] == [
        "__metadata__#0",
        "w[0:1]",
        "w[2:3]",
        "w[2:3]#3",
        "tensor.9",
    ]


def test_a_file_of_schema_2_is_read() -> None:
    row = {"dtype": "float32", "shape": [1], "at": 64, "bytes": 4, "id": 3, "of": [2], "from": [1]}
    header = json.dumps({"tree": {"a": 1}, "tensors": [row]}).encode()
    lead = b"PHXTENS1" + struct.pack("<Q", len(header)) + header
    lead += bytes(-len(lead) % 64)
    data = bytearray(lead + bytes(64) + struct.pack("<f", 2.5))
    tree, (entry,) = tensorfile.read_header(tensorfile._InMemory(data), "x")
    assert tree == {"a": 1} and entry.part == TensorRegion(3, (2,), (1,))
    _, (blob,) = tensorfile.parse(data, "x")
    assert bytes(blob.data) == struct.pack("<f", 2.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data.replace(b'"data_offsets":[0,4]', b'"data_offsets":[4,0]'),
        lambda data: data.replace(b"__metadata__", b"__metafata__"),
        lambda data: data.replace(b"phalanx", b"phalanY"),
    ],
    ids=["cut header", "cut data", "length", "offsets", "no metadata", "foreign"],
)
def test_a_damaged_file_is_corrupt(change) -> None:
    data = bytearray(file_of({"a": 1}, [floats(1.0)])[:-60])  # without the padding at its end
    with pytest.raises(CheckpointCorrupt):
        tensorfile.parse(bytearray(change(data)), "x")
