"""Packs of output: what is read back, and the lines that a search finds in them however they are cut."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from phalanx.core.logs.grams import bitmap, may_contain, places, required_text
from phalanx.core.logs.level_lines import count_levels, lines_with_levels, possible_signs
from phalanx.core.logs.levels import LogLevel, level_of, parse_level
from phalanx.core.logs.matching import LineFilter, matching_lines
from phalanx.core.logs.packs import decode, encode, packed
from phalanx.core.logs.segments import LogSegment, OpenLine, StreamKey, folded

STREAMS: list[StreamKey] = [
    (1, 0, 0, "out"),
    (1, 0, 1, "out"),
    (1, 0, 0, "err"),
    (1, 1, 0, "out"),
]
TEXT = st.lists(
    st.sampled_from([b"loss 1.5", b"ERROR bad", b"\n", b"\r", "é".encode(), b"warn", b"x"]),
    max_size=12,
).map(b"".join)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[LogSegment], dict[StreamKey, bytes]]:
    """Segments in the order of arrival, and all bytes of each stream; generations come one by one."""
    texts = {key: draw(TEXT) for key in STREAMS}
    segments: list[LogSegment] = []
    for generation in (0, 1):
        left = {key: 0 for key in STREAMS if key[1] == generation and texts[key]}
        while left:
            key = draw(st.sampled_from(sorted(left)))
            at = left[key]
            size = draw(st.integers(1, len(texts[key]) - at))
            number = len(segments) + 1
            data = texts[key][at : at + size]
            segments.append(LogSegment(number, 7, *key, at, 0, 1000 + number, data))
            left[key] = at + size
            if left[key] == len(texts[key]):
                del left[key]
    return segments, texts


def lines_of(texts: dict[StreamKey, bytes]) -> list[tuple[StreamKey, bytes]]:
    found = []
    for key, text in texts.items():
        *whole, tail = text.split(b"\n")
        found += [(key, folded(one)) for one in whole]
        found += [(key, folded(tail))] if tail else []
    return sorted(found)


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate], max_examples=200)
@given(arrivals(), st.data())
def test_lines_are_the_same_however_output_is_cut(
    arrived: tuple[list[LogSegment], dict[StreamKey, bytes]], data: st.DataObject
) -> None:
    segments, texts = arrived
    wanted = data.draw(
        st.sampled_from(
            [
                LineFilter(),
                LineFilter(text=b"error"),
                LineFilter(expression=re.compile(rb"(?m:loss [0-9])")),
                LineFilter(expression=re.compile(rb"(?m:^x+$)")),
                LineFilter(level=LogLevel.WARNING),
                LineFilter(ranks=frozenset({1})),
                LineFilter(text=b"bad", level=LogLevel.ERROR),
            ]
        )
    )
    expected = [
        (key, line)
        for key, line in lines_of(texts)
        if (wanted.ranks is None or key[2] in wanted.ranks) and wanted.of_line(line, 1)
    ]
    opened: dict[StreamKey, OpenLine] = {}
    found, read, left = [], [], list(segments)
    while left:
        size = data.draw(st.integers(1, len(left)))
        pack = decode(encode(packed(7, left[:size], opened)))
        read += pack.segments()
        left, opened = left[size:], pack.open_lines()
        found += matching_lines(pack, wanted, flush=False)
    assert read == segments
    found += matching_lines(packed(7, [], opened), wanted, flush=True)
    assert sorted((one.key, one.text) for one in found) == expected


def test_a_line_after_a_gap_is_no_continuation() -> None:
    key = (1, 0, 0, "out")
    first = LogSegment(1, 7, *key, 0, 0, 5, b"whole\nbegin")
    behind = LogSegment(2, 7, *key, 50, 0, 6, b"rest\n")
    pack = packed(7, [first, behind], {})
    found = matching_lines(pack, LineFilter(), flush=False)
    assert [(one.text, one.is_whole) for one in found] == [
        (b"whole", True),
        (b"begin", False),
        (b"rest", True),
    ]
    assert pack.open_lines() == {}


def test_times_are_those_of_the_end_of_a_line() -> None:
    key = (1, 0, 0, "out")
    pack = packed(
        7,
        [
            LogSegment(1, 7, *key, 0, 0, 100, b"one\ntw"),
            LogSegment(2, 7, *key, 6, 0, 200, b"o\nthree\n"),
        ],
        {},
    )
    late = matching_lines(pack, LineFilter(since=200), flush=False)
    assert [one.text for one in late] == [b"two", b"three"]
    assert [one.text for one in matching_lines(pack, LineFilter(until=200), flush=False)] == [
        b"one"
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"NONE" + data[4:],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data.replace(b'"job":7', b'"job":-7'),
        lambda data: data[:8] + b"[" + data[9:],
    ],
)
def test_damaged_packs_are_refused(damage: object) -> None:
    data = encode(packed(7, [LogSegment(1, 7, 1, 0, 0, "out", 0, 0, 5, b"x\n")], {}))
    with pytest.raises(ValueError, match=r"it |its |Expecting|no number"):
        decode(damage(data))  # type: ignore[operator]


@given(st.binary(max_size=300), st.integers(0, 290), st.integers(4, 12))
def test_no_text_of_a_pack_is_missed(text: bytes, at: int, size: int) -> None:
    needle = text[at : at + size]
    if len(needle) >= 4:
        assert may_contain(bitmap(text), places(needle))
        assert may_contain(bitmap(text), places(needle.upper()))


def test_a_pack_without_a_text_is_passed_over() -> None:
    bits = bitmap(b"step 12: loss 0.25\n" * 100)
    assert not may_contain(bits, places(b"nan detected"))
    assert not may_contain(bitmap(b""), places(b"nan detected"))


@given(
    st.lists(
        st.sampled_from(
            ["loss", "a", ".", "*", "+", "?", r"\d", "[0-9]", "^", "$", "{2}", "=", r"\.", " "]
        ),
        min_size=1,
        max_size=8,
    ).map("".join),
    st.text(alphabet="los a=.0123", max_size=30),
)
def test_every_match_has_the_required_text(pattern: str, text: str) -> None:
    try:
        match = re.search(pattern, text)
    except re.error:
        return
    if match is not None:
        assert required_text(pattern) in match[0]


@pytest.mark.parametrize(
    ("pattern", "required"),
    [
        ("loss is nan", "loss is nan"),
        (r"step \d+: loss nan", ": loss nan"),
        ("ab?cdef", "cdef"),
        ("abcd{0,3}xy", "abc"),
        ("one|two", ""),
        ("(?i)nan", ""),
        (r"\x{41}bcdef", ""),
        (r"[\]]abcdef", ""),
        ("[abc", ""),
    ],
)
def test_the_required_text_of_an_expression(pattern: str, required: str) -> None:
    assert required_text(pattern) == required


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (b"2026-01-01 INFO started", LogLevel.INFO),
        (b"WARNING: slow", LogLevel.WARNING),
        (b"[WARN] slow", LogLevel.WARNING),
        (b'{"level": "error", "msg": "INFO"}', LogLevel.ERROR),
        (b"ts=1 level=debug msg=x", LogLevel.DEBUG),
        (b"FATAL", LogLevel.CRITICAL),
        (b"Traceback (most recent call last):", LogLevel.ERROR),
        (b"validation error: 0.23", None),
        (b"INFORMATION", None),
        (b"ERRORS", None),
        (b"10% ERROR\r20% fine", None),
        (b"", None),
    ],
)
def test_the_level_of_a_line(line: bytes, level: LogLevel | None) -> None:
    assert level_of(line) == level
    found = list(lines_with_levels(b"a\n" + line + b"\nb", 0, len(line) + 4))
    assert [one[2] for one in found] == ([] if level is None else [level])


SIGNS = [
    *(b"ERROR", b"INFO", b"WARN", b"WARNING", b"xINFO", b"INFOx", b"level", b'="', b"error"),
    *(b"\n", b"\r", b" ", b"Traceback (most recent call last)", b"DEBUG", b"\xff", b"FATAL"),
]


@given(st.lists(st.sampled_from(SIGNS), max_size=12).map(b"".join), st.integers(0, 5))
def test_levels_of_a_text_are_those_of_its_lines(text: bytes, before: int) -> None:
    expected, at = [], 0
    for line in text.split(b"\n"):
        level = level_of(line)
        if level is not None:
            expected.append((before + at, before + at + len(line), level))
        at += len(line) + 1
    whole = b"ERROR"[:before] + text + b"ERROR"
    assert list(lines_with_levels(whole, before, before + len(text))) == expected
    signs = possible_signs(bitmap(text))
    counted = Counter(level for _, _, level in expected)
    assert count_levels(whole, before, before + len(text), signs) == counted


def test_names_of_levels() -> None:
    assert parse_level("warning") is parse_level("WARN") is LogLevel.WARNING
    assert parse_level("loud") is None
