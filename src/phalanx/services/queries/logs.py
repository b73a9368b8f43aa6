"""Read logs as lines: join stored segments, which are cut anywhere, by rank and stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from phalanx.core.jobs.model import TERMINAL, Job
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import LogGap, LogLine, LogPage
from phalanx.services.platform import Platform
from phalanx.services.queries.views import parts_of, ranks_of, role_of
from phalanx.store import jobs, telemetry
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.telemetry import LogSegment, StreamKey

GapCause = Literal["lost", "limit", "expired", "unsent"]
# A longer line is returned in pieces of this size, so that readers see it before it ends.
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Cursor:
    """A read position: after segment `segment`, except for unfinished lines.

    `open_lines` maps each stream with an unfinished line to the offset where that line begins.
    """

    segment: int = 0
    open_lines: Mapping[StreamKey, int] = field(default_factory=dict)

    def __str__(self) -> str:
        tails = ",".join(
            ".".join(map(str, (*key, start))) for key, start in sorted(self.open_lines.items())
        )
        return f"{self.segment}~{tails}" if tails else str(self.segment)


def parse_cursor(text: str) -> Cursor:
    """The reverse of `str(cursor)`. Raises UserError."""
    try:
        segment, _, tails = text.partition("~")
        open_lines: dict[StreamKey, int] = {}
        for tail in filter(None, tails.split(",", _MAX_OPEN_LINES)):
            attempt, generation, rank, stream, start = tail.split(".")
            open_lines[int(attempt), int(generation), int(rank), stream] = int(start)
        return Cursor(int(segment), open_lines)
    except ValueError:
        raise UserError(
            f"{text!r} is not a log cursor", "use the `cursor` of the last answer"
        ) from None


_MAX_OPEN_LINES = 1000


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A filter of log lines. `tail` limits a call without a cursor to the last lines.

    With `role`, `ranks` are numbers within that role.
    """

    ranks: tuple[int, ...] = ()
    stream: str | None = None
    tail: int | None = None
    role: str | None = None


def read_logs(platform: Platform, num: int, query: LogQuery, cursor: str | None) -> LogPage:
    """Read the lines after `cursor` in the order of arrival; without one, from the start or the tail.

    Unfinished lines are held back until they end, the job is over, or the next generation writes.
    Raises NotFound, and UserError for an invalid cursor or an unknown role.
    """
    return platform.store.view(lambda tx: _read(tx, num, query, cursor))


def _read(tx: Tx, num: int, query: LogQuery, cursor: str | None) -> LogPage:
    stored = jobs.load(tx, num)
    over, ranks = stored.job.state in TERMINAL, ranks_of(stored, query.role, query.ranks)
    at = Cursor() if cursor is None else parse_cursor(cursor)
    tailing = cursor is None and query.tail is not None
    if tailing:
        found = telemetry.last_logs(tx, num, ranks=ranks, stream=query.stream)
    else:
        found = telemetry.logs_after(tx, num, cursor=at.segment, ranks=ranks, stream=query.stream)
    more = not tailing and bool(found) and found[-1].id < telemetry.last_log_id(tx, num)
    begun = {
        key: telemetry.line_start(tx, num, key, start=start, up_to=at.segment)
        for key, start in at.open_lines.items()
    }
    lines: list[LogLine] = []
    if cursor is None and not tailing:
        lines = _expired_lines(tx, stored.job, query, ranks)
    more_lines, rest = assemble(
        found, begun, _bounds(tx, num, found, tailing), flush=over and not more
    )
    lines += more_lines
    last = found[-1].id if found else at.segment
    if tailing and query.tail is not None:
        lines = lines[len(lines) - min(query.tail, len(lines)) :]
        last = max(last, at.segment)
    if stored.job.policy.roles:
        lines = [_with_role(stored, line) for line in lines]
    return LogPage(lines=lines, cursor=str(Cursor(last, rest)), done=over and not more)


def _expired_lines(tx: Tx, job: Job, query: LogQuery, ranks: Sequence[int]) -> list[LogLine]:
    """A line for each stream of which nothing is left."""
    return [
        _gap_line(one.key, _gap("expired", 0, one.received), job.submitted_at)
        for one in telemetry.expired_streams(tx, job.num)
        if (not ranks or one.rank in ranks) and query.stream in (None, one.stream)
    ]


def _with_role(stored: StoredJob, line: LogLine) -> LogLine:
    role, rank = role_of(parts_of(stored), line.rank)
    return line.model_copy(update={"role": role, "rank_in_role": rank})


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """What is known of a stream beside the segments at hand.

    `begin` is where the stored bytes before the first of these segments end.
    """

    begin: int = 0
    received: int = 0  # bytes up to here were received once
    expired: int = 0  # bytes before this were deleted because of their age
    marks: Mapping[int, int] = field(default_factory=dict)  # the same as `begin`, for each mark


def _bounds(
    tx: Tx, num: int, found: Sequence[LogSegment], tailing: bool
) -> dict[StreamKey, StreamBounds]:
    bounds: dict[StreamKey, StreamBounds] = {}
    marks: dict[StreamKey, dict[int, int]] = {}
    for segment in found:
        key = _key_of(segment)
        if not segment.data:
            # What is stored before it may have arrived after it.
            begin = telemetry.end_before(tx, num, key, segment.offset)
            marks.setdefault(key, {})[segment.id] = begin
        if key not in bounds:
            known = telemetry.log_stream(tx, num, key)
            begin = segment.offset
            if not tailing or not segment.data:
                begin = telemetry.end_before(tx, num, key, segment.offset)
            received, expired = (0, 0) if known is None else (known.received, known.expired)
            bounds[key] = StreamBounds(begin, received, expired, marks.setdefault(key, {}))
    return bounds


def _key_of(segment: LogSegment) -> StreamKey:
    return segment.attempt, segment.generation, segment.rank, segment.stream


@dataclass(slots=True)
class _Open:
    """An unfinished line: its bytes, its offset in the stream, and the time of its last bytes."""

    data: bytes
    start: int
    at: int


def assemble(
    segments: Sequence[LogSegment],
    begun: Mapping[StreamKey, tuple[int, bytes]],
    bounds: Mapping[StreamKey, StreamBounds],
    *,
    flush: bool,
) -> tuple[list[LogLine], dict[StreamKey, int]]:
    """Finished lines and gaps in `segments`, and offsets of unfinished lines; `flush` returns those too.

    `begun` are the unfinished lines of earlier segments: their offsets and bytes.
    """
    at = segments[0].at if segments else 0
    opened = {key: _Open(data, start, at) for key, (start, data) in begun.items()}
    ends = {key: bound.begin for key, bound in bounds.items()}
    lines: list[LogLine] = []
    for segment in segments:
        key = _key_of(segment)
        _flush_older(opened, key, lines)
        gaps = _gaps(segment, ends.get(key, 0), bounds.get(key, StreamBounds()))
        ends[key] = max(ends.get(key, 0), segment.offset + len(segment.data))
        line = opened.pop(key, None)
        if line is None or gaps:
            if line is not None and line.data:
                lines.append(_line(key, line.data, segment.at, partial=True))
            line = _Open(b"", segment.offset, segment.at)
        lines.extend(_gap_line(key, gap, segment.at) for gap in gaps)
        data = line.data + segment.data
        *whole, tail = data.split(b"\n")
        lines.extend(_line(key, one, segment.at) for one in whole)
        start = line.start + len(data) - len(tail)
        if len(tail) > _MAX_LINE_BYTES:
            lines.append(_line(key, tail, segment.at, partial=True))
            start, tail = start + len(tail), b""
        if tail:
            opened[key] = _Open(tail, start, segment.at)
    if flush:
        lines.extend(_line(key, one.data, one.at) for key, one in opened.items() if one.data)
        opened = {}
    return lines, {key: one.start for key, one in opened.items()}


def _gaps(segment: LogSegment, end: int, bound: StreamBounds) -> list[LogGap]:
    """What is missing before a segment, after stored bytes that end at `end`."""
    gaps: list[LogGap] = []
    upto = segment.offset
    if not segment.data:
        end, upto = max(end, bound.marks.get(segment.id, 0)), min(upto, bound.received)
    aged = min(upto, max(end, bound.expired))
    for cause, begin, until in (
        ("expired", end, aged),
        ("limit", max(end, aged), upto),
        ("unsent", max(end, upto), segment.offset),
    ):
        if until > begin:
            gaps.append(_gap(cast("GapCause", cause), begin, until))
    if segment.dropped:
        gaps.append(LogGap(num_bytes=segment.dropped, cause="lost"))
    return gaps


def _gap(cause: GapCause, begin: int, end: int) -> LogGap:
    return LogGap(num_bytes=end - begin, cause=cause, begin=begin, end=end)


_WHY: Mapping[GapCause, str] = {
    "lost": "the node could not write them to its disk",
    "limit": "more output than is stored of one job; the file on the node may have them",
    "expired": "older than the retention of logs",
    "unsent": "the supervisor ended before it had sent them; the file on the node may have them",
}


def _gap_line(key: StreamKey, gap: LogGap, at: int) -> LogLine:
    where = "" if gap.begin is None else f" (offset {gap.begin:,} to {gap.end:,})"
    said = f"[{gap.num_bytes:,} bytes are missing here{where}: {_WHY[gap.cause]}]"
    return _line(key, said.encode(), at).model_copy(update={"gap": gap})


def _flush_older(opened: dict[StreamKey, _Open], key: StreamKey, lines: list[LogLine]) -> None:
    """Return unfinished lines of older generations of the same stream: they will never end."""
    for other in [one for one in opened if one[2:] == key[2:] and one[:2] < key[:2]]:
        ended = opened.pop(other)
        if ended.data:
            lines.append(_line(other, ended.data, ended.at))


def _line(key: StreamKey, data: bytes, at: int, *, partial: bool = False) -> LogLine:
    attempt, generation, rank, stream = key
    return LogLine(
        rank=rank,
        stream=cast("Literal['out', 'err']", stream),
        at=at_of(at),
        text=data.removesuffix(b"\r").decode("utf-8", errors="replace"),
        attempt=attempt,
        generation=generation,
        partial=partial,
    )
