"""The bytes of a pack: segments of one job, sorted by stream, with the lines that were open before them.

Four bytes say what it is and its version, four the length of the head. The head is JSON: an entry for each
stream, with the line that was open at its beginning and its segments. Bytes follow in the same order, so
that each stream is one piece of text. A line belongs to the pack that it ends in: a search needs no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.logs.segments import MAX_LINE_BYTES, LogSegment, OpenLine, StreamKey, older

MAGIC = b"PLP1"
MAX_BYTES = 64 << 20
"""The most bytes of a pack without compression."""
MAX_OPENED_BYTES = 8 << 20
"""The most bytes of a pack in lines that were open before it; a search sees other lines in parts."""
_HEAD = 8
_NUMBERS = 5


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """One segment: its number, place in the stream and time, and where its bytes lie in the body."""

    id: int
    offset: int
    dropped: int
    at: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TextRun:
    """Bytes of a stream without a gap: [begin, end) of the body, from `offset` in the stream."""

    begin: int
    end: int
    offset: int
    is_last: bool  # its last line may go on in the next pack


@dataclass(frozen=True, slots=True)
class PackedStream:
    """One stream in a pack; `opened` is the line that was open before it, from `begin` in the body."""

    key: StreamKey
    begin: int
    opened: OpenLine | None
    segments: tuple[PackedSegment, ...]

    def runs(self) -> Iterator[TextRun]:
        """The pieces of text between gaps."""
        begin, start, end = self.begin, 0, self.begin
        expected: int | None = None
        if self.opened is not None:
            start, end = self.opened.start, begin + len(self.opened.data)
            expected = start + len(self.opened.data)
        for one in self.segments:
            if one.begin == one.end:
                continue
            if expected is not None and (one.offset != expected or one.dropped):
                yield TextRun(begin, end, start, is_last=False)
                expected = None
            if expected is None:
                begin, start = one.begin, one.offset
            end, expected = one.end, one.offset + one.end - one.begin
        if expected is not None:
            yield TextRun(begin, end, start, is_last=True)


@dataclass(frozen=True, slots=True, eq=False)
class LogPack:
    """A decoded pack."""

    job: int
    streams: tuple[PackedStream, ...]
    body: bytes

    def segments(self) -> list[LogSegment]:
        """Its segments in the order of arrival."""
        found = [
            LogSegment(
                *(one.id, self.job, *stream.key, one.offset, one.dropped, one.at),
                self.body[one.begin : one.end],
            )
            for stream in self.streams
            for one in stream.segments
        ]
        return sorted(found, key=lambda one: one.id)

    def closed(self) -> set[StreamKey]:
        """Streams with a newer generation of their rank in this pack: their last line gets no end."""
        keys = [one.key for one in self.streams]
        return older(keys, [one.key for one in self.streams if one.segments])

    def open_lines(self) -> dict[StreamKey, OpenLine]:
        """The lines that are open behind this pack, `MAX_OPENED_BYTES` of them at most: the shortest."""
        found: dict[StreamKey, OpenLine] = {}
        closed = self.closed()
        for stream in self.streams:
            runs = list(stream.runs())
            if stream.key in closed or not runs:
                continue
            last = runs[-1]
            begin = self.body.rfind(b"\n", last.begin, last.end) + 1 or last.begin
            if not 0 < last.end - begin <= MAX_LINE_BYTES:
                continue
            ats = [one.at for one in stream.segments if one.begin < one.end]
            at = ats[-1] if ats else stream.opened.at if stream.opened is not None else 0
            start = last.offset + begin - last.begin
            found[stream.key] = OpenLine(start, at, self.body[begin : last.end])
        left = MAX_OPENED_BYTES
        for key, line in sorted(found.items(), key=lambda one: len(one[1].data)):
            left -= len(line.data)
            if left < 0:
                del found[key]
        return found


def packed(
    job: int, segments: Sequence[LogSegment], opened: Mapping[StreamKey, OpenLine]
) -> LogPack:
    """A pack of segments in the order of arrival, after lines that are open."""
    by_stream: dict[StreamKey, list[LogSegment]] = {key: [] for key in opened}
    for one in segments:
        by_stream.setdefault(one.key, []).append(one)
    body, streams = bytearray(), []
    for key, ones in sorted(by_stream.items()):
        begin, line = len(body), opened.get(key)
        body += b"" if line is None else line.data
        rows = []
        for one in ones:
            at = len(body)
            body += one.data
            rows.append(PackedSegment(one.id, one.offset, one.dropped, one.at, at, len(body)))
        streams.append(PackedStream(key, begin, line, tuple(rows)))
    return LogPack(job, tuple(streams), bytes(body))


def encode(pack: LogPack) -> bytes:
    """The bytes of a pack, without compression."""
    head = json.dumps(
        {
            "job": pack.job,
            "streams": [
                [
                    *stream.key,
                    None
                    if stream.opened is None
                    else [stream.opened.start, stream.opened.at, len(stream.opened.data)],
                    [
                        [one.id, one.offset, one.dropped, one.at, one.end - one.begin]
                        for one in stream.segments
                    ],
                ]
                for stream in pack.streams
            ],
        },
        separators=(",", ":"),
    ).encode()
    return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, pack.body))


def decode(data: bytes) -> LogPack:
    """The reverse of `encode`. Raises ValueError for bytes that are no pack."""
    if data[:4] != MAGIC:
        raise ValueError("it does not begin as a pack of output")
    length = _HEAD + int.from_bytes(data[4:_HEAD], "little")
    try:
        head = json.loads(data[_HEAD:length])
        body = data[length:]
        streams, at = [], 0
        for attempt, generation, rank, stream, line, rows in head["streams"]:
            begin, opened = at, None
            if line is not None:
                start, line_at, size = map(_whole, line)
                opened, at = OpenLine(start, line_at, body[at : at + size]), at + size
            found = []
            for row in rows:
                number, offset, dropped, arrived, size = map(_whole, row)
                found.append(PackedSegment(number, offset, dropped, arrived, at, at + size))
                at += size
            key = (_whole(attempt), _whole(generation), _whole(rank), str(stream))
            streams.append(PackedStream(key, begin, opened, tuple(found)))
        job = _whole(head["job"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"its head is damaged: {error}") from error
    if at != len(body):
        raise ValueError(f"it has {len(body)} bytes of output in place of {at}")
    return LogPack(job, tuple(streams), body)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{str(value)[:50]} is no number of its head")
    return value
