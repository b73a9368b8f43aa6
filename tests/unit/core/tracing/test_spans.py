"""Spans of jobs: identifiers that never change, parents that exist, ends that are not before begins."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.tracing import otlp
from phalanx.core.tracing.identity import JobTrace
from phalanx.core.tracing.spans import MAX_EVENTS, JobSpans, SaveTime, Span, TraceTimes

pytestmark = pytest.mark.unit
TRACE = JobTrace(7, "0" * 32 + "-abc")
S = 1_000_000


@dataclass(frozen=True)
class Event:
    kind: str
    at: int
    state: str
    seq: int = 0
    attempt: int | None = None
    generation: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    reason_code: str = "submitted"


def event(kind: str, at_s: float, state: str, **rest: Any) -> Event:
    return Event(kind, round(at_s * S), state, **rest)


FAILURE = {"cause": "rank_crash", "rank": 1, "node_rank": 0, "at": round(29.5 * S)}
#: a job of two nodes that restarts once
LIFE = (
    event("submitted", 0, "queued"),
    event("attempt_placed", 5, "starting", attempt=1, data={"placement": {"shares": [1, 2]}}),
    event("node_ready", 8, "starting", attempt=1),
    event("node_ready", 9, "starting", attempt=1),
    event("ranks_started", 10, "starting", attempt=1, generation=0),
    event("ranks_started", 11, "running", attempt=1, generation=0),
    event("checkpoint_committed", 20, "running", attempt=1, generation=0, data={"path": "/a"}),
    event("warned", 21, "running", attempt=1, generation=0),
    event("rank_failed", 30, "running", attempt=1, generation=0, data={"failure": FAILURE}),
    event("ranks_ended", 31, "running", attempt=1, generation=0),
    event("ranks_ended", 32, "recovering", attempt=1, generation=0),
    event("backoff_elapsed", 34, "recovering", attempt=1),
    event("ranks_started", 35, "recovering", attempt=1, generation=1),
    event("ranks_started", 36, "running", attempt=1, generation=1),
    event("restored", 37, "running", attempt=1, generation=1, data={"took_s": 0.5, "step": 9}),
    event("ranks_ended", 50, "running", attempt=1, generation=1),
    event("ranks_ended", 51, "succeeded", attempt=1, generation=1, reason_code="completed"),
    event("archived", 90, "succeeded"),
)
TIMES = TraceTimes({(1, 0): 15 * S, (1, 1): 40 * S}, {"/a": SaveTime(round(19.5 * S), 2.5)})


def numbered(events: Sequence[Event]) -> list[Event]:
    return [
        Event(**{**one.__dict__, "seq": number}) if not one.seq else one
        for number, one in enumerate(events, 1)
    ]


def spans(events: Sequence[Event], times: TraceTimes = TIMES) -> list[Span]:
    building = JobSpans(TRACE, "j-7", "vision")
    found = [span for one in numbered(events) for span in building.add(one, times)]
    return found + building.open_spans()


def seconds(found: Sequence[Span]) -> list[tuple[str, float, float | None]]:
    return sorted(
        (one.name, one.begin / S, None if one.end is None else one.end / S) for one in found
    )


def test_the_life_of_a_job() -> None:
    assert seconds(spans(LIFE)) == [
        ("attempt", 5, 51),
        ("detect failure", 29.5, 30),
        ("end ranks", 29.5, 32),
        ("end ranks", 50, 51),
        ("first step", 11, 15),
        ("first step", 36, 40),
        ("generation", 9, 32),
        ("generation", 34, 51),
        ("job", 0, 51),
        ("launch", 5, 9),
        ("queued", 0, 5),
        ("recovering", 32, 36),
        ("restore", 36.5, 37),
        ("running", 11, 32),
        ("running", 36, 51),
        ("save", 17, 19.5),
        ("start ranks", 9, 11),
        ("start ranks", 34, 36),
        ("starting", 5, 11),
    ]


def test_a_span_is_sent_when_it_has_ended_and_once() -> None:
    building = JobSpans(TRACE, "j-7", "vision")
    at_end = {}
    for one in numbered(LIFE):
        for span in building.add(one, TIMES):
            assert span.context not in at_end, span.name
            at_end[span.context] = one.at
            assert span.end is not None
            # The time of a first step stands beside the events, and is known at once here.
            assert span.end <= one.at or span.name == "first step"
    assert building.is_over and building.open_spans() == []
    assert len(at_end) == len(spans(LIFE))


def test_a_live_job_has_open_spans_that_others_hang_under() -> None:
    found = spans(LIFE[:7])
    opened = [one.name for one in found if one.end is None]
    assert opened == ["job", "attempt", "running", "generation"]
    assert check_parents(found)


def test_a_failure_names_its_cause_and_no_text() -> None:
    told = FAILURE | {"message": "password=hunter2", "traceback": "Traceback"}
    events = [
        Event(**{**one.__dict__, "data": {"failure": told}}) if one.kind == "rank_failed" else one
        for one in LIFE
    ]
    found = {one.name: one for one in spans(events)}
    failed = found["detect failure"]
    assert failed.ok is False
    assert failed.attributes["phalanx.cause"] == "rank_crash"
    assert failed.attributes["phalanx.rank"] == 1
    assert "hunter2" not in repr(found) and "Traceback" not in repr(found)
    first = next(one for one in spans(events) if one.name == "generation")
    assert first.ok is False and first.attributes["phalanx.cause"] == "rank_crash"


def test_a_pause_with_a_good_reason_is_no_end() -> None:
    events = [
        *LIFE[:8],
        event("ranks_stalled", 30, "running", attempt=1, generation=0, data={"failure": FAILURE}),
        event(
            "stacks_captured", 31, "running", attempt=1, generation=0, data={"excuse": "it saves"}
        ),
        event("ranks_ended", 60, "succeeded", attempt=1, generation=0),
    ]
    found = {one.name: one for one in spans(events)}
    assert found["end ranks"].begin == 60 * S
    assert "phalanx.cause" not in found["generation"].attributes


def test_every_generation_has_a_trace_that_links_to_its_attempt() -> None:
    roots = [one for one in spans(LIFE) if one.name == "generation"]
    assert [one.context for one in roots] == [TRACE.generation(1, 0), TRACE.generation(1, 1)]
    assert all(one.parent is None and one.link == TRACE.attempt(1) for one in roots)
    assert len({TRACE.root.trace, *(one.context.trace for one in roots)}) == 3


def test_identifiers_are_those_of_every_release() -> None:
    """Spans of users hang under them, and stored traces name them: they never change."""
    assert TRACE.root.traceparent() == ("00-1bfc15d71adf84d9de58c3e37617a673-c85f140e72244ba9-01")
    assert TRACE.attempt(1).span == "fe90f61aecf8b6fa"
    assert TRACE.generation(1, 0).traceparent() == (
        "00-85a0df0d843ef45835508896bc0e0411-d4d2b956d9516e0f-01"
    )
    assert TRACE.generation(1, 0).traceparent(sampled=False).endswith("-00")
    assert TRACE.tracestate(2, 3) == "phalanx=j7.a2.g3"
    assert JobTrace(7).root != JobTrace(8).root


def test_points_in_time_are_bounded() -> None:
    lost = [event("node_lost", 12, "running", attempt=1) for _ in range(MAX_EVENTS * 2)]
    (attempt,) = [one for one in spans([*LIFE[:7], *lost, *LIFE[7:]]) if one.name == "attempt"]
    assert len(attempt.events) == MAX_EVENTS


def test_otlp_leaves_open_spans_out_and_counts_in_nanoseconds() -> None:
    document = json.loads(json.dumps(otlp.request(spans(LIFE[:7]))))
    (resource,) = document["resourceSpans"]
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "phalanx"}}
    ]
    found = {one["name"]: one for one in resource["scopeSpans"][0]["spans"]}
    assert "job" not in found and "running" not in found
    queued = found["queued"]
    assert queued["traceId"] == TRACE.root.trace and queued["parentSpanId"] == TRACE.root.span
    assert (queued["startTimeUnixNano"], queued["endTimeUnixNano"]) == ("0", "5000000000")
    assert {"key": "phalanx.job", "value": {"stringValue": "j-7"}} in queued["attributes"]
    save = found["save"]
    assert save["status"] == {"code": 1}
    assert {"key": "phalanx.attempt", "value": {"intValue": "1"}} in save["attributes"]


# -- any order of events ---------------------------------------------------------------------------

_KINDS = (
    *("submitted", "attempt_placed", "node_ready", "node_lost", "launch_failed", "stop_requested"),
    *("ranks_started", "rank_failed", "ranks_stalled", "ranks_ended", "restored", "resumed"),
    *("checkpoint_committed", "checkpoint_quarantined", "backoff_elapsed", "stacks_captured"),
)
_STATES = ("waiting", "queued", "starting", "running", "recovering", "stopping", "paused")
_DATA = st.fixed_dictionaries(
    {},
    optional={
        "failure": st.none()
        | st.fixed_dictionaries(
            {"cause": st.just("oom"), "at": st.integers(0, 10**7), "collateral": st.booleans()}
        ),
        "took_s": st.floats(0, 1e4),
        "step": st.integers(0, 100),
        "path": st.text(string.ascii_letters, max_size=2),
        "excuse": st.sampled_from(["", "it saves"]),
    },
)
_EVENTS = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(_KINDS),
        at=st.integers(0, 10**7),
        state=st.sampled_from((*_STATES, "")),
        attempt=st.none() | st.integers(1, 3),
        generation=st.none() | st.integers(0, 2),
        data=_DATA,
    ),
    max_size=30,
)
_TIMES = st.builds(
    TraceTimes,
    st.dictionaries(st.tuples(st.integers(1, 3), st.integers(0, 2)), st.integers(0, 10**7)),
    st.dictionaries(
        st.text(string.ascii_letters, max_size=2),
        st.builds(SaveTime, st.integers(0, 10**7), st.floats(0, 10)),
    ),
)


def check_parents(found: Sequence[Span]) -> bool:
    known = {(one.context.trace, one.context.span) for one in found}
    return all(
        (one.parent is None or (one.context.trace, one.parent) in known)
        and (one.link is None or (one.link.trace, one.link.span) in known)
        for one in found
    )


@given(_EVENTS, _TIMES, st.sampled_from(["succeeded", "failed", "cancelled", ""]))
def test_any_events_give_whole_spans_and_the_same_ones_again(
    events: list[Event], times: TraceTimes, end: str
) -> None:
    """Times may even run backwards."""
    last = [event("stop_requested", 20, end)] if end else []
    found = spans([*events, *last], times)
    assert found == spans([*events, *last], times)
    assert check_parents(found)
    assert len({one.context for one in found}) == len(found)
    assert all(one.end is None or one.end >= one.begin for one in found)
    if end:
        assert all(one.end is not None for one in found)
