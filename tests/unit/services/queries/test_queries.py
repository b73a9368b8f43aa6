"""Small pure parts of the services: clocks, thinning of curves, lines of logs, lineage."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.logs.missing import MissingBytes, MissingMark
from phalanx.core.logs.segments import LogSegment
from phalanx.core.training.ledger import Consumed
from phalanx.errors import UserError
from phalanx.schemas.api.jobs import JobView, NodeRankView
from phalanx.schemas.api.telemetry import LogLine
from phalanx.services.lifecycle.sync import estimate_offset
from phalanx.services.queries.lineage import account
from phalanx.services.queries.logs import Cursor, StreamBounds, assemble, parse_cursor
from phalanx.store.jobs import JobFacts
from phalanx.store.lineage import LedgerSlice, RestoreRow
from phalanx.store.supervisors import SupervisorRow

pytestmark = pytest.mark.unit

S = 1_000_000


@given(st.lists(st.integers(0, 2 * S), min_size=1, max_size=20), st.integers(-(10**12), 10**12))
def test_the_least_delayed_message_tells_the_offset(delays: list[int], offset: int) -> None:
    known, now = None, 10**15
    for delay in delays:
        now += S
        known = estimate_offset(
            known, sent_at=now - delay - offset, received_at=now, since_last_us=S
        )
    assert known is not None
    assert offset <= known <= offset + min(delays) + 100 * len(delays)


def test_a_view_takes_no_secret_from_its_row() -> None:
    """`of` copies every field with an equal name: neither tokens nor the caller's environment leave."""
    facts, supervisor = ({one.name for one in fields(row)} for row in (JobFacts, SupervisorRow))
    named = {"name", "project", "owner", "labels", "framework", "kind", "priority", "spec"}
    named |= {"array", "array_index", "study", "trial"}
    assert facts & JobView.model_fields.keys() == named
    process = {"node_rank", "host", "pid", "phase", "step", "warm", "last_seen_at"}
    assert supervisor & NodeRankView.model_fields.keys() == process


def test_a_clock_that_was_set_back_is_followed() -> None:
    known = estimate_offset(None, sent_at=0, received_at=500, since_last_us=0)
    assert estimate_offset(known, sent_at=0, received_at=3600 * S, since_last_us=S) == 3600 * S
    assert estimate_offset(known, sent_at=3600 * S, received_at=S, since_last_us=S) == -3599 * S


def cut(text: bytes, at: list[int]) -> list[LogSegment]:
    edges = sorted({0, len(text), *(one % (len(text) + 1) for one in at)})
    return [
        LogSegment(index + 1, 1, 1, 0, 0, "out", lo, 0, S, text[lo:hi])
        for index, (lo, hi) in enumerate(itertools.pairwise(edges))
    ]


@settings(max_examples=150)
@given(
    st.lists(st.text("ab\u00e9 ", max_size=6), max_size=8),
    st.booleans(),
    st.lists(st.integers(0, 10**6), max_size=6),
    st.integers(0, 6),
)
def test_lines_do_not_depend_on_how_bytes_were_cut(
    lines: list[str], ends: bool, edges: list[int], split: int
) -> None:
    text = "\n".join(lines).encode() + (b"\n" if ends and lines else b"")
    pieces = cut(text, edges)
    first, rest = assemble(pieces[:split], [], {}, {}, flush=False)
    end = _end(pieces[:split])
    begun = {key: (start, text[start:end]) for key, start in rest.items()}
    cursor = parse_cursor(str(Cursor(split, rest)))
    assert cursor == Cursor(split, rest)
    bounds = {(1, 0, 0, "out"): StreamBounds(end)}
    second, left = assemble(pieces[split:], [], begun, bounds, flush=True)
    assert not left
    wanted = text.decode().split("\n")
    if wanted[-1] == "":
        wanted.pop()
    assert [one.text for one in first + second] == wanted


def _end(pieces: list[LogSegment]) -> int:
    return pieces[-1].offset + len(pieces[-1].data) if pieces else 0


def test_a_new_generation_ends_the_lines_of_the_old_one() -> None:
    old = LogSegment(1, 1, 1, 0, 0, "out", 0, 0, S, b"cut off here")
    new = LogSegment(2, 1, 1, 1, 0, "out", 0, 0, S, b"again\n")
    lines, rest = assemble([old, new], [], {}, {}, flush=False)
    assert [(one.generation, one.text) for one in lines] == [(0, "cut off here"), (1, "again")]
    assert rest == {}


def told(lines: list[LogLine]) -> list[object]:
    return [
        one.text if one.gap is None else (one.gap.cause, one.gap.num_bytes, one.gap.begin)
        for one in lines
    ]


def test_what_is_missing_stands_in_its_place_with_the_number_of_bytes() -> None:
    def part(number: int, offset: int, data: bytes, dropped: int = 0) -> LogSegment:
        return LogSegment(number, 1, 1, 0, 0, "out", offset, dropped, S, data)

    key = (1, 0, 0, "out")
    segments = [
        part(5, 40, b"one\ncut"),
        part(6, 47, b"two\n", dropped=9),
        part(7, 100, b"three\n"),
    ]
    # It had 400 bytes when its supervisor ended.
    unsent = MissingMark(8, key, S, (MissingBytes("unsent", 294, 106, 400),), 400)
    bounds = {key: StreamBounds(begin=10, expired=30)}
    lines, rest = assemble(segments, [unsent], {}, bounds, flush=True)
    assert told(lines) == [
        ("expired", 20, 10),
        ("limit", 10, 30),
        "one",
        "cut",
        ("lost", 9, None),
        "two",
        ("limit", 49, 51),
        "three",
        ("unsent", 294, 106),
    ]
    assert rest == {} and "294 bytes are missing here (offset 106 to 400)" in lines[-1].text
    # What a mark told before a segment is not told again.
    cut = MissingMark(5, key, S, (MissingBytes("limit", 30, 10, 40),), 40)
    assert told(assemble(segments, [cut], {}, bounds, flush=True)[0])[:2] == [
        ("limit", 30, 10),
        "one",
    ]


@pytest.mark.parametrize("text", ["x", "1~2", "1~1.2.3", "1~1.0.0.out.x"])
def test_a_cursor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a log cursor"):
        parse_cursor(text)


def test_work_behind_a_restore_is_redone_and_all_is_counted_once() -> None:
    def restore(generation: int, position: int) -> RestoreRow:
        return RestoreRow(1, 1, generation, None, 0, 0, position, True, None, S)

    def ledger(generation: int, node: int, *rows: Consumed) -> LedgerSlice:
        return LedgerSlice(1, 1, generation, node, 10, rows)

    slices = [
        ledger(0, 0, Consumed(0, 0, 4)),
        ledger(0, 1, Consumed(0, 4, 8)),
        ledger(1, 0, Consumed(0, 4, 7), Consumed(1, 0, 5)),
        ledger(1, 1, Consumed(0, 7, 10), Consumed(1, 5, 10)),
    ]
    found = account(slices, [restore(0, 0), restore(1, 4)], 10)
    assert (found.missed, found.duplicated, found.redone, found.consumed) == (0, 0, 4, 20)
    lost = account(slices, [restore(0, 0), restore(1, 6)], 10)  # resumed too far, as the data says
    assert lost.duplicated == 2


def test_what_a_silent_attempt_did_not_tell_is_unheard() -> None:
    def taken(attempt: int, position: int) -> RestoreRow:
        return RestoreRow(1, attempt, 0, None, 0, 0, position, True, None, S)

    slices = [
        LedgerSlice(1, 1, 0, 0, 10, (Consumed(0, 0, 2),)),
        LedgerSlice(1, 3, 0, 0, 10, (Consumed(0, 6, 10),)),
    ]
    restores = [taken(1, 0), taken(3, 6)]
    for silent, missed, unreported in ((set[int](), 4, 0), ({1}, 0, 4), ({2}, 0, 4), ({3}, 4, 0)):
        found = account(slices, restores, 10, silent)
        assert (found.missed, found.unreported) == (missed, unreported), silent
