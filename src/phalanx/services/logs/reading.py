"""Read segments of a job's output: the older ones from packs, the newer ones from rows.

Packs hold the first segments of a job in the order of arrival, so a reader meets all packs before all rows.
Rows are read in one transaction, and files after it. What the job's limit deleted, and what was never sent,
has a place in that order too, and is told there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from phalanx.core.logs.missing import MissingBytes, MissingMark, StreamBounds, missing_between
from phalanx.core.logs.packs import LogPack
from phalanx.core.logs.segments import LogSegment, StreamKey
from phalanx.errors import NotFound, StoreCorrupt
from phalanx.services.platform import Platform
from phalanx.store import telemetry
from phalanx.store.database import Tx
from phalanx.store.logs import packs
from phalanx.store.logs.packs import PackRow, StreamPart
from phalanx.store.telemetry import CutPlace, LogStream

PAGE_BYTES = 4 << 20
# Rows of the index that one statement reads, and the most packs that a page reads.
_ROWS, _PACKS = 200, 64
_LOG = logging.getLogger(__name__)


class PackDeleted(Exception):
    """A pack was deleted since its row was read: what takes its place is to be looked up again."""


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

    def has(self, key: StreamKey) -> bool:
        """Whether a stream is wanted."""
        return (not self.ranks or key[2] in self.ranks) and self.stream in (None, key[3])


@dataclass(frozen=True, slots=True)
class StoredLogs:
    """Segments in the order of arrival, with all that is needed to make lines of them."""

    segments: list[LogSegment]
    marks: list[MissingMark]  # what is missing between and behind them, in the same order
    begun: dict[StreamKey, tuple[int, bytes]]  # lines that began before: their offsets and bytes
    bounds: dict[StreamKey, StreamBounds]
    last: int  # the last place that was looked at
    more: bool  # more was stored behind it


@dataclass(slots=True)
class LookedUp:
    """What one transaction has found; packs are named, and not read yet."""

    job: int  # job number
    wish: Wanted  # what the reader asked for
    packs: list[PackRow] = field(default_factory=list)  # with wanted output
    rows: list[LogSegment] = field(default_factory=list)  # segments that are in no pack
    after: int = 0  # what is told has places behind this …
    up_to: int = 0  # … up to here
    last_id: int = 0  # the newest place in the output of the job
    cut: CutPlace = CutPlace(0, 0)  # where the job's limit deleted output
    cut_streams: list[LogStream] = field(default_factory=list)  # what it deleted, if told here
    ended: list[LogStream] = field(default_factory=list)  # streams with an end that is told here
    #: segments in no pack with beginnings of open lines
    open_rows: dict[StreamKey, list[LogSegment]] = field(default_factory=dict)
    streams: dict[StreamKey, LogStream] = field(default_factory=dict)  # of packs and rows
    before: dict[StreamKey, int] = field(default_factory=dict)  # bounds of the first rows


def look_up(tx: Tx, num: int, wanted: Wanted) -> LookedUp:
    """Find what a reader wants, about `PAGE_BYTES` of it."""
    found = LookedUp(num, wanted, after=wanted.after, last_id=telemetry.last_log_id(tx, num))
    found.up_to = found.last_id
    if wanted.tailing:
        _look_back(tx, found)
    else:
        _look_ahead(tx, found)
    _look_for_marks(tx, found)
    for key, start in wanted.open_lines.items():
        found.open_rows[key] = telemetry.stream_segments(
            tx, num, key, start=start, up_to=wanted.after
        )
    keys = {part.key for pack in found.packs for part in pack.streams if wanted.has(part.key)}
    keys |= {one.key for one in found.rows}
    found.streams = telemetry.streams_of(tx, num, keys)
    for one in found.rows:
        if one.key not in found.before:
            told = one.offset if wanted.tailing else None
            found.before[one.key] = (
                telemetry.told_before(tx, num, one.key, one.offset) if told is None else told
            )
    return found


def _look_ahead(tx: Tx, found: LookedUp) -> None:
    num, wanted = found.job, found.wish
    at, left = wanted.after, PAGE_BYTES
    while left > 0:
        page = packs.of_job(tx, num, after=at, limit=_ROWS)
        for pack in page:
            if left > 0:
                at = pack.last_id
                if pack.has(wanted.ranks, wanted.stream):
                    found.packs.append(pack)
                    left -= _share(wanted, pack)
        if len(page) < _ROWS:
            break
    if left > 0:
        found.rows = telemetry.logs_after(
            tx, num, cursor=at, ranks=wanted.ranks, stream=wanted.stream, max_bytes=left
        )
        left -= sum(len(one.data) for one in found.rows)
        at = found.rows[-1].id if found.rows else at
    if left <= 0:
        found.up_to = at


def _look_back(tx: Tx, found: LookedUp) -> None:
    num, wanted = found.job, found.wish
    found.rows = telemetry.last_logs(
        tx, num, ranks=wanted.ranks, stream=wanted.stream, max_bytes=PAGE_BYTES
    )
    left = PAGE_BYTES - sum(len(one.data) for one in found.rows)
    found.after = found.rows[0].id if found.rows else found.last_id
    at: int | None = None
    while left > 0:
        page = packs.newest(tx, num, up_to=at, limit=_ROWS)
        for pack in page:
            if left > 0:
                found.after, at = pack.first_id, pack.first_id - 1
                if pack.has(wanted.ranks, wanted.stream):
                    found.packs.insert(0, pack)
                    left -= _share(wanted, pack)
        if len(page) < _ROWS:
            break
    if left > 0:
        found.after = 0


def _share(wanted: Wanted, pack: PackRow) -> int:
    """Bytes of a page that a pack takes: those that are wanted, and something for reading it."""
    mine = sum(part.end - part.begin for part in pack.streams if wanted.has(part.key))
    return max(min(mine, pack.num_bytes), PAGE_BYTES // _PACKS)


def _look_for_marks(tx: Tx, found: LookedUp) -> None:
    wanted = found.wish
    found.cut = telemetry.cut_place(tx, found.job)
    if found.after < found.cut.id <= found.up_to:
        found.cut_streams = telemetry.cut_streams(
            tx, found.job, ranks=wanted.ranks, stream=wanted.stream
        )
    ended = telemetry.ended_streams(
        tx,
        found.job,
        after=found.after,
        up_to=found.up_to,
        ranks=wanted.ranks,
        stream=wanted.stream,
    )
    found.ended = [one for one in ended if not (one.cut_end and one.end_id <= found.cut.id)]


def read(platform: Platform, found: LookedUp) -> StoredLogs:
    """Read the packs that were found. Raises PackDeleted, DataUnavailable."""
    wanted = found.wish
    segments: list[LogSegment] = []
    marks: list[MissingMark] = []
    before = dict(found.before)
    for row in reversed(found.packs):
        pack = read_pack(platform, row)
        if pack is None:
            marks += _unreadable(found, row)
            continue
        mine = [one for one in pack.segments() if one.id > wanted.after and wanted.has(one.key)]
        segments = mine + segments
        for part in row.streams:
            begin = _before(found, part, pack) if wanted.has(part.key) else None
            if begin is not None:
                before[part.key] = begin
    segments += found.rows
    bounds = {key: _bounds(begin, _known(found, key)) for key, begin in before.items()}
    marks += [_cut_mark(found.cut, one) for one in found.cut_streams]
    marks += [_end_mark(one) for one in found.ended]
    more = not wanted.tailing and found.up_to < found.last_id
    last = max(wanted.after, found.up_to)
    marks.sort(key=lambda one: (one.id, one.key))
    return StoredLogs(segments, marks, _begun(platform, found), bounds, last, more)


def read_pack(platform: Platform, row: PackRow) -> LogPack | None:
    """A pack; None where its file was deleted by hand or is damaged.

    Raises PackDeleted, DataUnavailable.
    """
    try:
        return platform.log_files.read(row.job, row.name)
    except (NotFound, StoreCorrupt) as error:
        if not platform.store.view(lambda tx: packs.is_ready(tx, row.name)):
            raise PackDeleted(row.name) from None
        _LOG.warning("%s", error)
        return None


def _bounds(begin: int, one: LogStream) -> StreamBounds:
    return StreamBounds(begin, one.expired, one.by_quota)


def _known(found: LookedUp, key: StreamKey) -> LogStream:
    return found.streams.get(key) or LogStream(found.job, *key, received=0, size=None, expired=0)


def _cut_mark(place: CutPlace, one: LogStream) -> MissingMark:
    """What the limit of the job deleted; the part of it that would have expired is told as such.

    An end that was said before is told behind it.
    """
    missing: list[MissingBytes] = []
    if one.expired < one.cut_end:
        begin = one.told_before(one.cut_begin)
        missing += missing_between(
            begin, one.cut_end, expired=one.expired, by_quota=one.by_quota, lost=one.cut_lost
        )
    if one.end_id <= place.id:
        missing += _unsent(one)
    end = one.cut_end if one.expired < one.cut_end else 0
    return MissingMark(place.id, one.key, place.at, tuple(missing), end)


def _end_mark(one: LogStream) -> MissingMark:
    return MissingMark(one.end_id, one.key, one.end_at, tuple(_unsent(one)), 0)


def _unsent(one: LogStream) -> list[MissingBytes]:
    """What a supervisor has not sent. Bytes that arrived later are not missing any more."""
    size = one.size or 0
    missing: list[MissingBytes] = []
    if size > one.received:
        missing.append(MissingBytes("unsent", size - one.received, one.received, size))
    if one.end_lost:
        missing.append(MissingBytes("lost", one.end_lost))
    return missing


def _unreadable(found: LookedUp, row: PackRow) -> list[MissingMark]:
    """What is in a pack that cannot be read."""
    marks = []
    for part in row.streams:
        if not found.wish.has(part.key):
            continue
        known = _known(found, part.key)
        begin = known.told_before(part.before)
        missing = missing_between(
            begin, part.begin, expired=known.expired, by_quota=known.by_quota, lost=0
        )
        missing += missing_between(
            part.begin, part.end, expired=0, lost=part.lost, cause="unreadable"
        )
        marks.append(MissingMark(row.last_id, part.key, row.last_at, tuple(missing), part.end))
    return marks


def _before(found: LookedUp, part: StreamPart, pack: LogPack) -> int | None:
    """The bound of the first wanted segment of a stream in a pack; None: there is no such one.

    A tail begins anywhere.
    """
    end = _known(found, part.key).told_before(part.before)
    for one in next(each for each in pack.streams if each.key == part.key).segments:
        if one.id > found.wish.after:
            return one.offset if found.wish.tailing else end
        end = one.offset + one.end - one.begin
    return None


def _begun(platform: Platform, found: LookedUp) -> dict[StreamKey, tuple[int, bytes]]:
    """The beginnings of open lines.

    A pack has those of the lines that were open before it as well, unless they are long: then earlier packs
    are looked at too.
    """
    wish = found.wish
    pieces = {key: list(found.open_rows[key]) for key in wish.open_lines}
    left = {key for key, start in wish.open_lines.items() if not _covers(pieces[key], start)}
    up_to, limit = wish.after, 1
    while left:
        look = partial(packs.newest, job=found.job, up_to=up_to, limit=limit)
        rows = platform.store.view(look)
        for row in rows:
            ends = {part.key: part.end for part in row.streams}
            if limit == 1 or any(ends.get(key, 0) > wish.open_lines[key] for key in left):
                _add_beginnings(platform, row, wish, pieces)
            left = {
                key
                for key in left
                if not _covers(pieces[key], wish.open_lines[key])
                and ends.get(key, wish.open_lines[key] + 1) > wish.open_lines[key]
            }
            up_to = row.first_id - 1
        if len(rows) < limit:
            break
        limit = _ROWS
    return {
        key: telemetry.joined_from(_sorted(pieces[key]), start)
        for key, start in wish.open_lines.items()
    }


def _add_beginnings(
    platform: Platform, row: PackRow, wish: Wanted, pieces: dict[StreamKey, list[LogSegment]]
) -> None:
    pack = read_pack(platform, row)
    if pack is None:
        return
    for stream in pack.streams:
        mine = pieces.get(stream.key)
        if mine is None:
            continue
        if stream.opened is not None:
            line = stream.opened
            mine.append(LogSegment(0, row.job, *stream.key, line.start, 0, 0, line.data))
        for one in stream.segments:
            if one.id <= wish.after:
                data = pack.body[one.begin : one.end]
                mine.append(LogSegment(one.id, row.job, *stream.key, one.offset, 0, 0, data))


def _covers(pieces: Iterable[LogSegment], start: int) -> bool:
    return any(one.offset <= start for one in pieces)


def _sorted(pieces: Iterable[LogSegment]) -> list[LogSegment]:
    return sorted(pieces, key=lambda one: one.offset)
