"""Lines of output: stored segments, which are cut anywhere, joined by stream."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.core.logs.missing import (
    MissingBytes,
    MissingMark,
    StreamBounds,
    missing_between,
    words_of,
)
from phalanx.core.logs.segments import MAX_LINE_BYTES, LogSegment, OpenLine, StreamKey


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line, or what is told in place of missing bytes.

    `segment` and `index` are the same whenever the line is read again.
    """

    key: StreamKey  # (attempt, generation, rank, stream)
    at: int  # arrival of its last bytes, µs UTC
    offset: int  # of its first byte in the stream
    data: bytes  # without the end of the line
    segment: int  # number of the segment that it ends in
    index: int  # among the lines that end in the segment
    partial: bool = False  # its end is missing, or follows as a line of its own
    missing: MissingBytes | None = None  # what is missing here; `data` says it in words


def assembled(
    segments: Sequence[LogSegment],
    marks: Sequence[MissingMark],
    begun: Mapping[StreamKey, tuple[int, bytes]],
    bounds: Mapping[StreamKey, StreamBounds],
    *,
    flush: bool,
) -> tuple[list[OutputLine], dict[StreamKey, int]]:
    """Finished lines and gaps in `segments`, and offsets of unfinished lines; `flush` returns those too.

    `marks` are told in between. `begun` are the unfinished lines of earlier segments: their offsets and
    bytes.
    """
    at = segments[0].at if segments else 0
    opened = {key: OpenLine(start, at, data) for key, (start, data) in begun.items() if data}
    run = _Assembly(opened, {key: bound.begin for key, bound in bounds.items()})
    items: list[Sequence[MissingMark | LogSegment]] = [marks, segments]
    for item in heapq.merge(*items, key=lambda one: one.id):
        if item.id != run.segment:
            run.segment, run.index = item.id, 0
        if isinstance(item, MissingMark):
            run.ends[item.key] = max(run.ends.get(item.key, 0), item.end)
            run.tell(item.key, item.missing, item.at)
        else:
            run.add(item, bounds.get(item.key, StreamBounds()))
    if flush:
        for key, line in run.opened.items():
            if line.data:
                run.put(key, line.data, line.start, line.at)
        run.opened = {}
    return run.lines, {key: one.start for key, one in run.opened.items()}


@dataclass(slots=True)
class _Assembly:
    """The state between two segments."""

    opened: dict[StreamKey, OpenLine]  # unfinished lines
    ends: dict[StreamKey, int]  # up to where the bytes of each stream are read or told
    lines: list[OutputLine] = field(default_factory=list)
    segment: int = 0
    index: int = 0

    def put(
        self, key: StreamKey, data: bytes, offset: int, at: int, *, partial: bool = False
    ) -> None:
        """Add a line."""
        line = OutputLine(key, at, offset, data, self.segment, self.index, partial)
        self.lines.append(line)
        self.index += 1

    def tell(self, key: StreamKey, missing: Sequence[MissingBytes], at: int) -> None:
        """Add what is missing at this place of a stream; the line before it has no end."""
        if not missing:
            return
        line = self.opened.pop(key, None)
        if line is not None and line.data:
            self.put(key, line.data, line.start, at, partial=True)
        for one in missing:
            place = self.ends.get(key, 0) if one.begin is None else one.begin
            told = words_of(one).encode()
            self.lines.append(
                OutputLine(key, at, place, told, self.segment, self.index, missing=one)
            )
            self.index += 1

    def add(self, item: LogSegment, bound: StreamBounds) -> None:
        """Add the lines that end in a segment."""
        key = item.key
        self._end_older(key)
        begin = self.ends.get(key, item.offset)
        missing = missing_between(
            begin, item.offset, expired=bound.expired, by_quota=bound.by_quota, lost=item.dropped
        )
        self.ends[key] = max(begin, item.end)
        self.tell(key, missing, item.at)
        line = self.opened.pop(key, None) or OpenLine(item.offset, item.at, b"")
        start = line.start
        *whole, tail = (line.data + item.data).split(b"\n")
        for one in whole:
            self.put(key, one, start, item.at)
            start += len(one) + 1
        if len(tail) > MAX_LINE_BYTES:
            self.put(key, tail, start, item.at, partial=True)
            start, tail = start + len(tail), b""
        if tail:
            self.opened[key] = OpenLine(start, item.at, tail)

    def _end_older(self, key: StreamKey) -> None:
        """Add unfinished lines of older generations of the same stream: they will never end."""
        for other in [one for one in self.opened if one[2:] == key[2:] and one[:2] < key[:2]]:
            ended = self.opened.pop(other)
            if ended.data:
                self.put(other, ended.data, ended.start, ended.at)
