"""Records of a rank's report file: what is written is read back, and nonsense is refused."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract import records
from phalanx.core.contract.records import MetricRecord, StepRecord, WarningRecord

pytestmark = pytest.mark.unit
KINDS = sorted(records._KINDS)
NUMBER = st.integers(-(2**53), 2**53)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    "int": NUMBER,
    "int | None": st.none() | NUMBER,
    "float": FLOAT,
    "float | None": st.none() | FLOAT,
    "str": st.text(),
    "str | None": st.none() | st.text(),
    "float | str | None": st.none() | FLOAT | st.text(),
    "bool": st.booleans(),
    "Mapping[str, Any]": st.dictionaries(st.text(), NUMBER | st.text() | st.booleans() | st.none()),
    "Mapping[str, float | str]": st.dictionaries(st.text(), FLOAT | st.text()),
    "Sequence[int]": st.lists(NUMBER).map(tuple),
    "Sequence[float]": st.lists(FLOAT).map(tuple),
    "Sequence[str]": st.lists(st.text()).map(tuple),
    "Sequence[Any]": st.lists(NUMBER).map(tuple),
    "Sequence[Mapping[str, float | None]]": st.lists(
        st.dictionaries(st.text(), st.none() | FLOAT)
    ).map(tuple),
}


def some(kind):
    cls = records._KINDS[kind]
    fields = {one.name: VALUES[str(one.type)] for one in dataclasses.fields(cls)}
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_survives_the_file(kind):
    @given(some(kind), st.integers(0, 2**60))
    def check(record, at):
        ((end, body),) = records.decode(data := records.encode(record, at))
        assert end == len(data)
        assert records.from_json(body) == (at, record)

    check()


def test_records_come_back_with_the_offset_behind_each():
    one, two = records.encode(StepRecord(step=1), 5), records.encode(WarningRecord("ü"), 6)
    found = [(end, records.from_json(body)) for end, body in records.decode(one + two)]
    assert found[0] == (len(one), (5, StepRecord(step=1)))
    assert found[1] == (len(one + two), (6, WarningRecord("ü")))


def test_a_record_that_is_cut_off_is_not_read():
    data = records.encode(StepRecord(step=1), 1)
    assert list(records.decode(data[:-1])) == []
    assert list(records.decode(data + data[:3]))[-1][0] == len(data)


@pytest.mark.parametrize(
    "body",
    [
        [1],
        "text",
        {"k": "step", "t": 1},
        {"k": "step", "step": 1e999, "t": 1},
        {"k": "step", "step": 1},
        {"k": "metric", "step": 1, "t": 1, "values": [1]},
        {"k": "profile", "t": 1},
        {"k": "metric", "step": 1, "t": 1, "values": {"loss": None}},
        {"k": "guard", "t": 1, "step": 1, "what": 1, "origin": 2, "action": 3, "ranks": [1e999]},
        {"k": "guard", "t": 1, "step": 1, "what": 1, "origin": 2, "action": 3, "ranks": "12"},
    ],
)
def test_nonsense_is_refused(body):
    with pytest.raises(ValueError, match="not a record"):
        records.from_json(body)


def test_kinds_and_fields_of_a_later_release_are_passed_over():
    assert records.from_json({"k": "later", "t": 1}) is None
    assert records.from_json({"t": 1}) is None
    assert records.from_json({"k": 7, "t": 1}) is None
    body = {"k": "step", "t": 1, "step": 3, "later": []}
    assert records.from_json(body) == (1, StepRecord(step=3))


def test_a_value_that_is_not_plain_json_is_refused():
    with pytest.raises(TypeError):
        records.encode(MetricRecord(step=1, values={"loss": object()}), 1)


def test_a_value_within_itself_is_refused():
    values: dict = {"loss": 1.0}
    values["all"] = values
    with pytest.raises(ValueError, match="within itself"):
        records.encode(MetricRecord(step=1, values=values), 1)
    with pytest.raises(ValueError, match="nested too deep"):
        records.parse(b"[" * 1_000_000)


def test_a_new_file_holds_nothing():
    head = records.header(42)
    assert len(head) == records.HEADER_BYTES
    assert records.committed_length(head) == 0
    assert records.writer_pid(head) == 42


def test_the_committed_length_is_eight_aligned_bytes_of_the_header():
    at = records.LENGTH_OFFSET
    head = bytearray(records.header(42))
    head[at : at + 8] = records.pack_length(1 << 40)
    assert at % 8 == 0
    assert records.committed_length(bytes(head)) == 1 << 40


def test_other_files_are_refused():
    assert records.committed_length(b"") == 0
    assert records.committed_length(b"\0" * 64) == 0
    with pytest.raises(ValueError, match="not a report file"):
        records.committed_length(b"PK\3\4" + b"\0" * 60)
    with pytest.raises(ValueError, match=r"report protocol 1.* this supervisor reads 2"):
        records.committed_length(b"PHXRPT\0\0\1\0\0\0" + b"\0" * 52)
