"""Any points come back from a chunk as they were, and wrong bytes are errors."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.core.contract.records import MetricPoint
from phalanx.core.curves import chunks
from phalanx.core.curves.columns import MetricColumns, columns_of, stacked

pytestmark = pytest.mark.unit
WHOLE = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["loss", "acc", "step_time|b3", "ä", ""])
POINTS = st.lists(
    st.builds(
        MetricPoint,
        st.integers(0, 2**31 - 1),
        WHOLE,
        WHOLE,
        st.dictionaries(NAMES, st.floats(), max_size=5),
    ),
    max_size=60,
)


def same(one: MetricPoint, other: MetricPoint) -> bool:
    """Equal, where NaN is equal to NaN and 0.0 is not equal to -0.0."""
    return one[:3] == other[:3] and {k: repr(v) for k, v in one.values.items()} == {
        k: repr(v) for k, v in other.values.items()
    }


def read(columns: MetricColumns) -> list[MetricPoint]:
    return columns.points(0, columns.num_rows)


@given(POINTS)
@example([MetricPoint(0, 0, 0, {}), MetricPoint(0, 0, -(2**63), {})])
def test_points_come_back_as_they_were(points: list[MetricPoint]) -> None:
    for encode in (chunks.encode, chunks.encode_report):
        found = read(chunks.decode(encode(columns_of(points))).columns)
        assert len(found) == len(points)
        assert all(same(one, other) for one, other in zip(found, points, strict=True))


@given(st.lists(POINTS.filter(len), min_size=1, max_size=4))
def test_joined_chunks_keep_their_arrivals(parts: list[list[MetricPoint]]) -> None:
    whole = stacked([columns_of(part) for part in parts])
    arrivals = [(7 * number, len(part)) for number, part in enumerate(parts)]
    chunk = chunks.decode(chunks.encode(whole, arrivals))
    assert chunk.arrivals == arrivals
    found = read(chunk.columns)
    assert all(
        same(one, other)
        for one, other in zip(found, [p for part in parts for p in part], strict=True)
    )


def test_long_columns_are_compressed_and_one_is_read_alone() -> None:
    points = [MetricPoint(0, step, step, {"loss": 1.0, "acc": 0.5}) for step in range(20_000)]
    data = chunks.encode(columns_of(points))
    assert len(data) < 2000
    chunk = chunks.decode(data, ("acc",))
    assert list(chunk.columns.values) == ["acc"] and chunk.columns.num_values == 20_000
    assert chunk.columns.points(19_999, 20_000) == [MetricPoint(0, 19_999, 19_999, {"acc": 0.5})]


def test_single_precision_takes_half_only_where_nothing_is_lost() -> None:
    def size(value: float) -> int:
        return len(chunks.encode(columns_of([MetricPoint(0, 0, 0, {"x": value})] * 100)))

    assert size(0.5) == size(math.inf) == size(math.nan) == size(0.1) - 400
    assert size(1e300) == size(0.1)


@settings(max_examples=300)
@given(st.data())
def test_wrong_bytes_are_errors(data: st.DataObject) -> None:
    points = [MetricPoint(r, s, s, {"loss": s / 3}) for s in range(700) for r in range(2)]
    encode = data.draw(st.sampled_from([chunks.encode, chunks.encode_report]))
    good = encode(columns_of(points[: data.draw(st.sampled_from([3, 1400]))]))
    at = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["cut", "more", "flip"]))
    if kind == "cut":
        bad = good[:at]
    elif kind == "more":
        bad = good + b"\0"
    else:
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    try:
        found = chunks.decode(bad)
    except ValueError:
        return
    assert kind == "flip" and found.columns.num_rows <= chunks.MAX_ROWS


def test_a_small_chunk_cannot_ask_for_much_memory() -> None:
    head = b'{"rows":1048577,"arrivals":[],"columns":[]}'
    start = b"PMC\x01" + len(head).to_bytes(4, "little")
    with pytest.raises(ValueError, match="may be 1048576"):
        chunks.decode(start + head)
    with pytest.raises(ValueError, match="version 3"):
        chunks.decode(b"PMC\x03" + start[4:] + head)


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_ROWS", 2)
    with pytest.raises(ValueError, match="too many"):
        chunks.encode(columns_of([MetricPoint(0, 0, 0, {})] * 3))
    with pytest.raises(ValueError, match="too many"):
        chunks.encode_report(columns_of([MetricPoint(0, 0, 0, {})] * 3))


@pytest.mark.parametrize("many", [2, 4])
def test_arrivals_are_those_of_all_rows(many: int) -> None:
    """Readers that follow the arrivals would leave rows out, or read beyond them."""
    columns = columns_of([MetricPoint(0, 0, 0, {})] * 3)
    with pytest.raises(ValueError, match=r"arrivals|a count"):
        chunks.decode(chunks.encode(columns, [(1, many)]))
