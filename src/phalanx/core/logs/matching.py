"""Lines of a pack that match: words, expressions, ranks, levels and times.

The text of a stream is searched as a whole, and only lines around a find are looked at. Every line is then
judged by itself, so that a find across line ends is none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.core.logs.levels import LogLevel, level_of
from phalanx.core.logs.packs import LogPack, PackedStream, TextRun
from phalanx.core.logs.segments import MAX_LINE_BYTES, StreamKey, folded

BEHIND = 1 << 62
"""The offset of a place behind all lines that end in a segment."""
Place = tuple[int, int]
"""The place of a line in the output of a job: the segment that it ends in, and its offset in the stream.

A line that a newer generation or the end of the job ended has a negative offset.
"""


class LineExpression(Protocol):
    """A regular expression over bytes, in which `^` and `$` are the ends of a line."""

    def search(self, text: bytes, begin: int = ..., /) -> Any:
        """The first match from a place in a text on, or None."""
        ...


@dataclass(frozen=True, slots=True)
class LineFilter:
    """What a line must have. `text` is in lower case; of `level`, higher ones match too."""

    text: bytes = b""
    expression: LineExpression | None = None
    ranks: frozenset[int] | None = None
    stream: str | None = None
    level: LogLevel | None = None
    since: int | None = None  # µs UTC
    until: int | None = None  # µs UTC; of before it

    def of_stream(self, key: StreamKey) -> bool:
        """Whether lines of a stream can match."""
        in_ranks = self.ranks is None or key[2] in self.ranks
        return in_ranks and self.stream in (None, key[3])

    def of_times(self, first: int, last: int) -> bool:
        """Whether lines that arrived in [first, last] can match."""
        early = self.until is not None and first >= self.until
        return not early and (self.since is None or last >= self.since)

    def of_line(self, line: bytes, at: int) -> bool:
        """Whether a line that arrived at a time matches; that of its stream is known."""
        if not self.of_times(at, at):
            return False
        if self.text and self.text not in line.lower():
            return False
        if self.expression is not None and self.expression.search(line) is None:
            return False
        if self.level is None:
            return True
        level = level_of(line)
        return level is not None and level >= self.level


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that matches."""

    place: Place
    key: StreamKey
    at: int  # µs UTC
    text: bytes  # as a terminal shows it
    is_whole: bool  # its end was seen


def matching_lines(pack: LogPack, wanted: LineFilter, *, flush: bool) -> list[FoundLine]:
    """The lines of a pack that match, in their order; with `flush`, open ones too."""
    lowered = pack.body.lower() if wanted.text else pack.body
    closed = pack.closed()
    newest = max((one.id for each in pack.streams for one in each.segments), default=0)
    found: list[FoundLine] = []
    for stream in pack.streams:
        if wanted.of_stream(stream.key):
            ends = flush or stream.key in closed
            found += _of_stream(pack.body, lowered, stream, wanted, ends=ends, newest=newest)
    return sorted(found, key=lambda one: one.place)


def _of_stream(
    body: bytes,
    lowered: bytes,
    stream: PackedStream,
    wanted: LineFilter,
    *,
    ends: bool,
    newest: int,
) -> Iterator[FoundLine]:
    segments = [one for one in stream.segments if one.begin < one.end]
    borders = [one.end for one in segments]
    for run in stream.runs():
        for begin, end in _candidates(body, lowered, run, wanted):
            is_open = end == run.end
            goes_on = run.is_last and not ends and end - begin <= MAX_LINE_BYTES
            if is_open and (begin == end or goes_on):
                continue
            index = min(bisect_right(borders, end if not is_open else end - 1), len(segments) - 1)
            line = folded(body[begin:end])
            at = segments[index].at if segments else stream.opened.at if stream.opened else 0
            if not wanted.of_line(line, at):
                continue
            offset = run.offset + begin - run.begin
            place = (segments[index].id if segments else newest, offset)
            if is_open and run.is_last:
                place = (newest, -1 - offset)
            yield FoundLine(place, stream.key, at, line, not is_open)


def _candidates(
    body: bytes, lowered: bytes, run: TextRun, wanted: LineFilter
) -> Iterator[tuple[int, int]]:
    """Lines of a run that may match, as [begin, end); the one at the end of the run may be open."""
    expression = wanted.expression
    if not wanted.text and expression is None and wanted.level is not None:
        from phalanx.core.logs.level_lines import lines_with_levels

        for begin, end, level in lines_with_levels(body, run.begin, run.end):
            if level >= wanted.level:
                yield begin, end
        return
    # With carriage returns in it, a line is not what it shows: each is judged by itself.
    as_shown = expression is not None and body.find(b"\r", run.begin, run.end) < 0
    # By itself: at its beginning and end `^` and `$` must not see another stream.
    text = body[run.begin : run.end] if as_shown and not wanted.text else b""
    at = run.begin
    while at < run.end:
        if wanted.text:
            at = lowered.find(wanted.text, at, run.end)
        elif as_shown and expression is not None:
            match = expression.search(text, at - run.begin)
            at = -1 if match is None else run.begin + match.start()
        if at < 0:
            return
        begin = body.rfind(b"\n", run.begin, at) + 1 or run.begin
        end = body.find(b"\n", at, run.end)
        end = run.end if end < 0 else end
        yield begin, end
        at = end + 1
