"""Calls as bytes say the same as in JSON, and wrong bytes are refused before memory is taken for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from phalanx.core.contract.records import MetricPoint
from phalanx.schemas.wire import report_bytes
from phalanx.schemas.wire.report_bytes import decode_columns, decode_request, encode_request
from phalanx.schemas.wire.supervision import (
    MetricColumnsReport,
    MetricsReport,
    SyncRequest,
    WarningReport,
)

pytestmark = pytest.mark.unit
WHOLE = st.integers(-(2**63), 2**63 - 1)
POINTS = st.lists(
    st.builds(
        MetricPoint,
        st.integers(0, 2**31 - 1),
        WHOLE,
        WHOLE,
        st.dictionaries(
            st.sampled_from(["loss", "acc", "ä", ""]), st.floats(allow_nan=False), max_size=4
        ),
    ),
    min_size=1,
    max_size=30,
)
WARNING = WarningReport(seq=9, generation=1, rank=0, message="ä disk", at=5)


def request(*reports: MetricsReport | WarningReport) -> SyncRequest:
    return SyncRequest(job=3, attempt=2, node_rank=1, sent_at=7, reports=list(reports), seen="x")


def metrics(points: list[MetricPoint], seq: int = 1, leads: bool = True) -> MetricsReport:
    return MetricsReport(seq=seq, generation=1, points=points, leads=leads)


def encoded(*reports: MetricsReport | WarningReport) -> bytes:
    body = encode_request(request(*reports))
    assert body is not None
    return body


def decoded(body: bytes) -> SyncRequest:
    return SyncRequest.model_validate(decode_request(body, json.loads))


@given(st.lists(POINTS, min_size=1, max_size=3))
def test_points_come_back_as_they_were(parts: list[list[MetricPoint]]) -> None:
    sent = [metrics(points, seq, leads=seq % 2 == 0) for seq, points in enumerate(parts)]
    found = decoded(encoded(*sent, WARNING))
    assert found.reports[-1] == WARNING
    assert (found.job, found.attempt, found.node_rank, found.seen) == (3, 2, 1, "x")
    for one, other in zip(sent, found.reports, strict=False):
        assert isinstance(other, MetricColumnsReport)
        assert (one.seq, one.generation, one.leads) == (other.seq, other.generation, other.leads)
        columns = decode_columns(other)
        assert columns.points(0, columns.num_rows) == one.points


def test_a_call_that_columns_cannot_hold_stays_json(monkeypatch: pytest.MonkeyPatch) -> None:
    point = MetricPoint(0, 1, 2, {"loss": 0.5, "acc": 1.0})
    assert encode_request(request(WARNING)) is None, "no metrics"
    assert encode_request(request(metrics([]))) is None
    assert encode_request(request(metrics([point._replace(step=2**63)]))) is None
    for name, most in (("ROWS", 1), ("METRICS", 1), ("VALUES", 3)):
        with monkeypatch.context() as patch:
            patch.setattr(report_bytes, f"MAX_REPORT_{name}", most)
            assert encode_request(request(metrics([point, point]))) is None


@settings(max_examples=300)
@given(st.data())
def test_wrong_bytes_are_errors(data: st.DataObject) -> None:
    cells = [{"loss": 0.5}, {"loss": 0.25, "acc": 1.0}]
    points = [MetricPoint(0, step, step, cells[step % 2]) for step in range(5)]
    good = encoded(metrics(points))
    at = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["cut", "more", "flip"]))
    if kind == "cut":
        bad = good[:at]
    elif kind == "more":
        bad = good + b"\0"
    else:
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    try:
        columns = decode_columns(decoded(bad).reports[0])  # type: ignore[arg-type]
    except (ValueError, AssertionError, AttributeError, IndexError):
        return
    assert kind == "flip" and columns.num_rows == 5


def body(report: dict[str, object], data: bytes) -> bytes:
    given = {"seq": 1, "generation": 0, "kind": "metric_columns"} | report
    head = json.dumps(
        {"job": 1, "attempt": 1, "node_rank": 0, "sent_at": 0, "reports": [given]}
    ).encode()
    return b"PHR\x01" + len(head).to_bytes(4, "little") + head + data


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"rows": 1}, "without its rows or metrics"),
        ({"rows": True, "metrics": []}, "without its rows or metrics"),
        ({"rows": 1, "metrics": [["loss"]]}, "not a name with a number"),
        ({"rows": 1, "metrics": [["loss", -1]]}, "not a name with a number"),
        ({"rows": 1 << 60, "metrics": [["loss", 1 << 60]]}, "cut off in its columns"),
        ({"rows": 0, "metrics": []}, "greater than or equal to 1"),
        ({"rows": 2, "metrics": [["loss", 3]]}, "cut off in its columns"),
    ],
)
def test_a_head_that_lies_is_refused(report: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decoded(body(report, b""))


def test_counts_are_checked_against_one_another() -> None:
    with pytest.raises(ValidationError, match="named twice"):
        decoded(body({"rows": 1, "metrics": [["a", 1], ["a", 1]]}, bytes(36)))
    with pytest.raises(ValidationError, match="more values than 1 rows"):
        decoded(body({"rows": 1, "metrics": [["a", 2]]}, bytes(44)))
    plain = json.loads(request().model_dump_json()) | {
        "reports": [
            {"kind": "metric_columns", "seq": 1, "generation": 0, "rows": 1, "metrics": [["a", 1]]}
        ]
    }
    with pytest.raises(ValidationError, match="another size"):
        SyncRequest.model_validate(plain)


@pytest.mark.parametrize("rows", [(1, 0), (0, 0), (0, 3)])
def test_rows_of_a_metric_ascend(rows: tuple[int, int]) -> None:
    places = b"".join(one.to_bytes(4, "little") for one in rows)
    made = body({"rows": 3, "metrics": [["a", 2]]}, bytes(60) + places + bytes(16))
    with pytest.raises(ValueError, match="do not ascend"):
        decode_columns(decoded(made).reports[0])  # type: ignore[arg-type]


def test_a_negative_rank_is_refused() -> None:
    made = body({"rows": 1, "metrics": []}, b"\xff" * 4 + bytes(16))
    with pytest.raises(ValueError, match="negative"):
        decode_columns(decoded(made).reports[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"", "known"),
        (b"{}", "known"),
        (b"PHR\x02" + bytes(4), "known"),
        (b"PHR\x01\xff\xff\xff\xff", "head"),
    ],
)
def test_what_is_no_call_is_named(bad: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_request(bad, json.loads)
