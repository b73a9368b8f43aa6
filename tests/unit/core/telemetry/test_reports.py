import pytest

from phalanx.core.telemetry import reports

pytestmark = pytest.mark.unit


def test_records_come_back_with_the_offset_behind_each():
    one, two = {"k": "step", "step": 1}, {"k": "warn", "message": "ü"}
    data = reports.encode(one) + reports.encode(two)
    assert list(reports.decode(data)) == [(len(reports.encode(one)), one), (len(data), two)]


def test_half_a_record_is_not_read():
    data = reports.encode({"k": "step", "step": 1})
    assert list(reports.decode(data[:-1])) == []
    assert list(reports.decode(data + data[:3]))[-1][0] == len(data)


def test_the_header_says_nothing_committed_yet():
    head = reports.header(42)
    assert len(head) == reports.HEADER_BYTES
    assert reports.committed_length(head) == 0


def test_the_committed_length_is_eight_aligned_bytes():
    at = reports.LENGTH_OFFSET
    head = bytearray(reports.header(42))
    head[at : at + 8] = reports.pack_length(1 << 40)
    assert at % 8 == 0
    assert reports.committed_length(bytes(head)) == 1 << 40


def test_an_empty_file_is_not_an_error_and_another_one_is():
    assert reports.committed_length(b"") == 0
    assert reports.committed_length(b"\0" * 64) == 0
    with pytest.raises(ValueError, match="not a report"):
        reports.committed_length(b"PK\3\4" + b"\0" * 60)
    with pytest.raises(ValueError, match="protocol 2"):
        reports.committed_length(b"PHXRPT\0\0\2\0\0\0" + b"\0" * 52)
