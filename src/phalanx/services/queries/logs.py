"""Read logs as lines: join stored segments, which are cut anywhere, by rank and stream."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from phalanx.core.jobs.model import TERMINAL, Job
from phalanx.core.logs.lines import OutputLine, assembled
from phalanx.core.logs.missing import (
    MissingBytes,
    MissingMark,
    StreamBounds,
    missing_between,
    words_of,
)
from phalanx.core.logs.segments import LogSegment, StreamKey
from phalanx.errors import DataUnavailable, UserError
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import LogGap, LogLine, LogPage
from phalanx.services.logs.reading import (
    LookedUp,
    PackDeleted,
    StoredLogs,
    Wanted,
    look_up,
    read,
)
from phalanx.services.platform import Platform
from phalanx.services.queries.views import parts_of, ranks_of, role_of
from phalanx.store import jobs, telemetry
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob

_LOOKS = 10


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
    Raises NotFound, UserError for an invalid cursor or an unknown role, and DataUnavailable where packed
    output cannot be read now.
    """
    at = Cursor() if cursor is None else parse_cursor(cursor)
    tailing = cursor is None and query.tail is not None

    def look(tx: Tx) -> tuple[StoredJob, LookedUp, list[LogLine]]:
        stored = jobs.load(tx, num)
        ranks = ranks_of(stored, query.role, query.ranks)
        wanted = Wanted(ranks, query.stream, at.segment, at.open_lines, tailing)
        whole = cursor is None and not tailing
        expired = _expired_lines(tx, stored.job, query, ranks) if whole else []
        return stored, look_up(tx, num, wanted), expired

    for _ in range(_LOOKS):
        stored, found, lines = platform.store.view(look)
        with contextlib.suppress(PackDeleted):
            logs = read(platform, found)
            break
    else:
        raise DataUnavailable(
            f"output of {job_label(num)} is deleted while it is read", "try again"
        )
    return _page(stored, query, lines, logs, tailing=tailing)


def _page(
    stored: StoredJob, query: LogQuery, lines: list[LogLine], logs: StoredLogs, *, tailing: bool
) -> LogPage:
    over = stored.job.state in TERMINAL
    more_lines, rest = assemble(
        logs.segments, logs.marks, logs.begun, logs.bounds, flush=over and not logs.more
    )
    lines += more_lines
    if tailing and query.tail is not None:
        lines = lines[len(lines) - min(query.tail, len(lines)) :]
    if stored.job.policy.roles:
        lines = [_with_role(stored, line) for line in lines]
    return LogPage(lines=lines, cursor=str(Cursor(logs.last, rest)), done=over and not logs.more)


def _expired_lines(tx: Tx, job: Job, query: LogQuery, ranks: Sequence[int]) -> list[LogLine]:
    """A line for each stream of which nothing is left, and each cause."""
    return [
        _gap_line(one.key, missing, job.submitted_at)
        for one in telemetry.expired_streams(tx, job.num)
        if (not ranks or one.rank in ranks) and query.stream in (None, one.stream)
        for missing in missing_between(
            0, one.received, expired=one.expired, by_quota=one.by_quota, lost=0
        )
    ]


def _with_role(stored: StoredJob, line: LogLine) -> LogLine:
    role, rank = role_of(parts_of(stored), line.rank)
    return line.model_copy(update={"role": role, "rank_in_role": rank})


def assemble(
    segments: Sequence[LogSegment],
    marks: Sequence[MissingMark],
    begun: Mapping[StreamKey, tuple[int, bytes]],
    bounds: Mapping[StreamKey, StreamBounds],
    *,
    flush: bool,
) -> tuple[list[LogLine], dict[StreamKey, int]]:
    """Finished lines and gaps in `segments`, and offsets of unfinished lines; `flush` returns those too.

    `marks` are told in between. `begun` are the unfinished lines of earlier segments: their offsets and
    bytes.
    """
    lines, rest = assembled(segments, marks, begun, bounds, flush=flush)
    return [_line(one) for one in lines], rest


def _gap_line(key: StreamKey, one: MissingBytes, at: int) -> LogLine:
    return _line(OutputLine(key, at, 0, words_of(one).encode(), 0, 0, missing=one))


def _line(one: OutputLine) -> LogLine:
    attempt, generation, rank, stream = one.key
    return LogLine(
        rank=rank,
        stream=cast("Literal['out', 'err']", stream),
        at=at_of(one.at),
        text=one.data.removesuffix(b"\r").decode("utf-8", errors="replace"),
        attempt=attempt,
        generation=generation,
        partial=one.partial,
        gap=None if one.missing is None else _gap(one.missing),
    )


def _gap(one: MissingBytes) -> LogGap:
    return LogGap(num_bytes=one.num_bytes, cause=one.cause, begin=one.begin, end=one.end)
