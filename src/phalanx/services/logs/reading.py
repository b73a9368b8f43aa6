"""Read segments of a job's output: the older ones from packs, the newer ones from rows.

Packs hold the first segments of a job in the order of arrival, so a reader meets all packs before all rows.
Rows are read in one transaction, and files after it: a pack that was deleted meanwhile is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.core.logs.packs import LogPack
from phalanx.core.logs.segments import LogSegment, StreamKey
from phalanx.errors import NotFound
from phalanx.services.platform import Platform
from phalanx.store import telemetry
from phalanx.store.database import Tx
from phalanx.store.logs import packs
from phalanx.store.logs.packs import PackRow, StreamPart
from phalanx.store.telemetry import LogStream

PAGE_BYTES = 4 << 20
# Rows of the index that one statement reads, and packs that the beginning of an open line is looked for in.
_ROWS, _BACK = 200, 8


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """What is known of a stream beside the segments at hand.

    `begin` is where the stored bytes before the first of these segments end.
    """

    begin: int = 0
    received: int = 0  # bytes up to here were received once
    expired: int = 0  # bytes before this were deleted because of their age
    marks: Mapping[int, int] = field(default_factory=dict)  # the same as `begin`, for each mark


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants: segments of some ranks (none: of all) and one stream, behind `after`.

    `open_lines` are offsets of lines that began before; `tailing` asks for the newest segments.
    """

    ranks: Sequence[int] = ()
    stream: str | None = None
    after: int = 0
    open_lines: Mapping[StreamKey, int] = field(default_factory=dict)
    tailing: bool = False


@dataclass(frozen=True, slots=True)
class StoredLogs:
    """Segments in the order of arrival, with all that is needed to make lines of them."""

    segments: list[LogSegment]
    begun: dict[StreamKey, tuple[int, bytes]]  # lines that began before: their offsets and bytes
    bounds: dict[StreamKey, StreamBounds]
    last: int  # the last segment that was looked at
    more: bool  # more were stored behind it


@dataclass(slots=True)
class LookedUp:
    """What one transaction has found; packs are named, and not read yet."""

    wish: Wanted  # what the reader asked for
    packs: list[PackRow] = field(default_factory=list)  # with wanted output
    rows: list[LogSegment] = field(default_factory=list)  # segments that are in no pack
    last_id: int = 0  # the newest segment of the job
    back: list[PackRow] = field(default_factory=list)  # packs with beginnings of open lines
    #: segments with beginnings of open lines
    open_rows: dict[StreamKey, list[LogSegment]] = field(default_factory=dict)
    streams: dict[StreamKey, LogStream] = field(default_factory=dict)  # of packs and rows
    before: dict[StreamKey, int] = field(default_factory=dict)  # stored ends before first rows
    #: for segments without bytes, by their ids: where the stored bytes before them end
    marks: dict[StreamKey, dict[int, int]] = field(default_factory=dict)


def look_up(tx: Tx, num: int, wanted: Wanted) -> LookedUp:
    """Find what a reader wants, about `PAGE_BYTES` of it."""
    found = LookedUp(wanted, last_id=telemetry.last_log_id(tx, num))
    if wanted.tailing:
        _look_back(tx, num, found)
    else:
        _look_ahead(tx, num, found)
    for key, start in wanted.open_lines.items():
        found.open_rows[key] = telemetry.stream_segments(
            tx, num, key, start=start, up_to=wanted.after
        )
    if wanted.open_lines:
        found.back = _packs_behind(tx, num, wanted)
    for key in {part.key for pack in found.packs for part in pack.streams}:
        _know(tx, num, found, key)
    for one in found.rows:
        _know(tx, num, found, one.key)
        if not one.data:
            # What is stored before it may have arrived after it.
            begin = telemetry.end_before(tx, num, one.key, one.offset)
            found.marks.setdefault(one.key, {})[one.id] = begin
        if one.key not in found.before:
            begin = one.offset
            if not wanted.tailing or not one.data:
                begin = telemetry.end_before(tx, num, one.key, one.offset)
            found.before[one.key] = begin
    return found


def _know(tx: Tx, num: int, found: LookedUp, key: StreamKey) -> None:
    if key not in found.streams:
        known = telemetry.log_stream(tx, num, key)
        found.streams[key] = known or LogStream(num, *key, received=0, size=None, expired=0)


def _look_ahead(tx: Tx, num: int, found: LookedUp) -> None:
    wanted = found.wish
    at, left = wanted.after, PAGE_BYTES
    while left > 0:
        page = packs.of_job(tx, num, after=at, limit=_ROWS)
        for pack in page:
            if left > 0 and pack.has(wanted.ranks, wanted.stream):
                found.packs.append(pack)
                left -= pack.num_bytes
            at = pack.last_id
        if len(page) < _ROWS:
            break
    if left > 0:
        found.rows = telemetry.logs_after(
            tx, num, cursor=at, ranks=wanted.ranks, stream=wanted.stream, max_bytes=left
        )


def _look_back(tx: Tx, num: int, found: LookedUp) -> None:
    wanted = found.wish
    found.rows = telemetry.last_logs(
        tx, num, ranks=wanted.ranks, stream=wanted.stream, max_bytes=PAGE_BYTES
    )
    left = PAGE_BYTES - sum(len(one.data) for one in found.rows)
    for pack in packs.newest(tx, num, limit=_ROWS) if left > 0 else ():
        if left > 0 and pack.has(wanted.ranks, wanted.stream):
            found.packs.insert(0, pack)
            left -= pack.num_bytes


def _packs_behind(tx: Tx, num: int, wanted: Wanted) -> list[PackRow]:
    """Packs before the place of a reader that may have beginnings of its open lines."""
    newest = packs.newest(tx, num, up_to=wanted.after, limit=_BACK)
    return [
        pack
        for pack in reversed(newest)
        if any(part.end > wanted.open_lines.get(part.key, part.end) for part in pack.streams)
    ]


def read(platform: Platform, found: LookedUp) -> StoredLogs:
    """Read the packs that were found. Raises DataUnavailable, StoreCorrupt."""
    wanted = found.wish
    segments: list[LogSegment] = []
    before = dict(found.before)
    for row in reversed(found.packs):
        pack = _pack(platform, row)
        if pack is None:
            continue
        mine = [one for one in pack.segments() if one.id > wanted.after and _is(wanted, one)]
        segments = mine + segments
        for part in row.streams:
            begin = _before(found, part, pack)
            if begin is not None:
                before[part.key] = begin
    segments += found.rows
    marks = {key: dict(ones) for key, ones in found.marks.items()}
    for one in segments:
        known = found.streams[one.key]
        if not one.data and one.id not in marks.setdefault(one.key, {}):
            # In a pack: what has arrived since may have filled the gap before it.
            marks[one.key][one.id] = known.stored_before(min(one.offset, known.received))
    bounds = {}
    for key, begin in before.items():
        known = found.streams[key]
        bounds[key] = StreamBounds(begin, known.received, known.expired, marks.get(key, {}))
    last = max([wanted.after, *(one.id for one in segments), *(row.last_id for row in found.packs)])
    more = not wanted.tailing and wanted.after < last < found.last_id
    return StoredLogs(segments, _begun(platform, found), bounds, last, more)


def _before(found: LookedUp, part: StreamPart, pack: LogPack) -> int | None:
    """Where the stored bytes before the first wanted segment of a stream end; None: there is no such one.

    A tail begins anywhere.
    """
    end = found.streams[part.key].stored_before(part.before)
    for one in next(each for each in pack.streams if each.key == part.key).segments:
        if one.id > found.wish.after:
            return one.offset if found.wish.tailing and one.begin < one.end else end
        end = one.offset + one.end - one.begin
    return None


def _is(wanted: Wanted, one: LogSegment) -> bool:
    in_ranks = not wanted.ranks or one.rank in wanted.ranks
    return in_ranks and wanted.stream in (None, one.stream)


def _begun(platform: Platform, found: LookedUp) -> dict[StreamKey, tuple[int, bytes]]:
    pieces: dict[StreamKey, list[LogSegment]] = {key: [] for key in found.wish.open_lines}
    for row in found.back:
        pack = _pack(platform, row)
        for one in [] if pack is None else pack.segments():
            if one.key in pieces and one.id <= found.wish.after:
                pieces[one.key].append(one)
    return {
        key: telemetry.joined_from(_sorted([*pieces[key], *found.open_rows[key]]), start)
        for key, start in found.wish.open_lines.items()
    }


def _sorted(pieces: Iterable[LogSegment]) -> list[LogSegment]:
    return sorted(pieces, key=lambda one: one.offset)


def _pack(platform: Platform, row: PackRow) -> LogPack | None:
    """A pack; None where it was deleted since its row was read."""
    try:
        return platform.log_files.read(row.job, row.name)
    except NotFound:
        return None
