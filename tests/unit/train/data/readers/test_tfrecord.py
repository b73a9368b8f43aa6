"""TFRecord files: the checksum, the frames, the messages, and what is wrong with a file."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import DataCorrupt
from phalanx.train.data.readers.layouts import tfrecord
from phalanx.train.data.readers.locating import locate, save_index
from phalanx.train.data.readers.scanning import detect_kind, full_index
from phalanx.train.readers import TFRecords

pytestmark = pytest.mark.unit


def framed(data):
    head = struct.pack("<Q", len(data))
    crcs = [struct.pack("<I", tfrecord.masked(tfrecord.crc32c(one))) for one in (head, data)]
    return head + crcs[0] + data + crcs[1]


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**features):
    entries = b""
    for name, value in features.items():
        if isinstance(value, list):
            body = field(1, b"".join(field(1, one) for one in value))
        elif value.dtype == np.float32:
            body = field(2, field(1, value.tobytes()))
        else:
            body = field(3, field(1, b"".join(varint(int(one)) for one in value)))
        entries += field(1, field(1, name.encode()) + field(2, body))
    return field(1, entries)


def slowly(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_known_checksums():
    assert tfrecord.crc32c(b"123456789") == 0xE3069283
    assert tfrecord.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720
    assert tfrecord.crc32c(b"") == 0


@given(st.binary(max_size=40), st.integers(1, 60))
def test_long_data_has_the_checksum_of_the_definition(data, times):
    assert tfrecord.crc32c(data * times) == slowly(data * times)


def write(path, records):
    path.write_bytes(b"".join(map(framed, records)))


def test_samples_of_several_shards_with_and_without_an_index(tmp_path):
    write(tmp_path / "t.tfrecord-00000-of-00002", [example(n=np.array([at])) for at in range(3)])
    image = [b"\xff" * 700, b""]
    last = example(n=np.array([-1, 2**62]), w=np.array([0.5, -2], np.float32), image=image)
    write(tmp_path / "t.tfrecord-00001-of-00002", [last])
    assert detect_kind(locate(tmp_path).source.listing(), "here") == "tfrecord"
    plain = TFRecords(tmp_path)
    assert [one["n"].tolist() for one in plain] == [[0], [1], [2], [-1, 2**62]]
    sample = plain[3]
    assert sample["image"] == image and sample["w"].tolist() == [0.5, -2.0]
    assert (sample["w"].dtype, sample["n"].dtype) == (np.float32, np.int64)
    place = locate(tmp_path)
    save_index(full_index(place.source, "tfrecord"), place)
    indexed = TFRecords(tmp_path, lambda one: len(one), verify="full")
    assert (indexed[3], indexed.fingerprint()[:8]) == (3, "content:")
    one = TFRecords(str(tmp_path / "t.tfrecord-00001*"), parse=bytes)
    assert list(one) == [last]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: raw[:-1], "is cut off at byte"),
        (lambda raw: raw[:5], "in the head of a record"),
        (lambda raw: b"\x09" + raw[1:], "the length at byte 0 does not match its CRC"),
        (gzip.compress, "is a compressed TFRecord file"),
        (lambda raw: raw[:20] + b"X" + raw[21:], "does not match its CRC"),
        (lambda raw: framed(b"\xff\xff\xff"), "is no tf.train.Example"),
        (lambda raw: framed(field(1, field(1, b"\x08"))), "is no tf.train.Example"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, damage, said):
    raw = framed(example(n=np.arange(40)))
    (tmp_path / "a.tfrecord").write_bytes(damage(raw))
    with pytest.raises(DataCorrupt, match=said) as raised:
        TFRecords(tmp_path)[0]
    assert "a.tfrecord" in str(raised.value)


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_parsed_or_refused(data):
    try:
        tfrecord.parse_example(data)
    except ValueError:
        pass


@pytest.mark.extras  # TensorFlow takes seconds to load
def test_tensorflow_writes_what_is_read(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    train, rng = tensorflow.train, np.random.default_rng(0)
    rows = []
    with tensorflow.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for at in range(50):
            blob, floats = rng.bytes(at * 97), rng.normal(size=at % 5).astype(np.float32)
            whole = rng.integers(-(2**62), 2**62, at % 7)
            feature = {
                "blob": train.Feature(bytes_list=train.BytesList(value=[blob, b"x"])),
                "floats": train.Feature(float_list=train.FloatList(value=floats)),
                "whole": train.Feature(int64_list=train.Int64List(value=whole)),
                "none": train.Feature(),
            }
            made = train.Example(features=train.Features(feature=feature))
            writer.write(made.SerializeToString())
            rows.append((blob, floats.tolist(), whole.tolist()))
    found = [(one["blob"][0], one["floats"], one["whole"]) for one in TFRecords(tmp_path)]
    assert [(blob, list(floats), list(whole)) for blob, floats, whole in found] == rows
