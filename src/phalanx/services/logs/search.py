"""Search the output of a job: which packs can have a match, then their text, then the segments in no pack.

A call looks at output until its time or its bytes are used up, and says where it stopped. Expressions are
matched by RE2. Its time grows with the length of the text alone, so none can block a thread for long.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from phalanx.core.logs.levels import LogLevel
from phalanx.core.logs.matching import (
    BEHIND,
    FoundLine,
    LineExpression,
    LineFilter,
    Place,
    matching_lines,
)
from phalanx.core.logs.packs import LogPack, packed
from phalanx.core.logs.segments import LogSegment, OpenLine, StreamKey
from phalanx.errors import UserError
from phalanx.services.logs.reading import PackDeleted, read_pack
from phalanx.services.platform import Platform
from phalanx.store import telemetry
from phalanx.store.database import Tx
from phalanx.store.logs import packs
from phalanx.store.logs.packs import PackRow

MAX_PATTERN = 1000
_MAX_MEMORY = 32 << 20
_ROWS, _ROW_BYTES = 400, 8 << 20
# Threads that read packs, and packs that are read before they are searched.
_READERS, _AHEAD = 2, 4


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How much one call may do. With `lines` 0 it only counts."""

    lines: int = 200  # that it returns
    search_s: float = 2.0
    read_bytes: int = 2 << 30  # of output that it reads
    answer_bytes: int = 4 << 20  # of lines that it returns
    line_bytes: int = 64 << 10  # of one line; the rest is cut


@dataclass(frozen=True, slots=True)
class LogSearch:
    """What is looked for. `text` counts in any case; with no field set, every line matches."""

    text: str = ""
    expression: str = ""
    ranks: tuple[int, ...] = ()  # of the gang; none: all
    stream: str | None = None
    level: LogLevel | None = None  # or a higher one
    since: int | None = None  # µs UTC
    until: int | None = None  # µs UTC

    def filter(self) -> LineFilter:
        """The judge of lines. Raises UserError for an expression that is none."""
        return LineFilter(
            text=self.text.encode().lower(),
            expression=compiled(self.expression) if self.expression else None,
            ranks=frozenset(self.ranks) if self.ranks else None,
            stream=self.stream,
            level=self.level,
            since=self.since,
            until=self.until,
        )

    def needles(self) -> list[int]:
        """The bits of every pack with a match."""
        from phalanx.core.logs.grams import GRAM, places, required_text

        texts = (self.text.encode(), required_text(self.expression).encode())
        return sorted({one for text in texts if len(text) >= GRAM for one in places(text)})


@dataclass(slots=True)
class SearchResult:
    """What a call has found."""

    lines: list[FoundLine] = field(default_factory=list)
    count: int = 0  # of lines that match, those that are not in `lines` included
    #: where the next call goes on; None: there is nothing more
    next: Place | None = None
    searched: float = (
        1.0  # share of the job's stored output before the place where the search stopped
    )
    lines_bytes: int = 0
    stopped: bool = False  # before the end: `count` is the least number
    unreadable_bytes: int = 0  # of output in packs without a readable file

    def add(self, found: Sequence[FoundLine], behind: Place, limits: SearchLimits) -> None:
        """Count the lines behind a place, and keep them unless there are enough."""
        for line in found:
            if line.place <= behind:
                continue
            self.count += 1
            if limits.lines == 0 or self.next is not None:
                continue
            if len(self.lines) >= limits.lines or self.lines_bytes > limits.answer_bytes:
                self.next = self.lines[-1].place
                continue
            if len(line.text) > limits.line_bytes:
                line = replace(line, text=line.text[: limits.line_bytes], is_whole=False)
            self.lines.append(line)
            self.lines_bytes += len(line.text)


def compiled(expression: str) -> LineExpression:
    """A regular expression in which `^` and `$` are the ends of a line. Raises UserError."""
    import re2

    options = re2.Options()
    options.max_mem, options.never_nl, options.log_errors = _MAX_MEMORY, True, False
    try:
        if len(expression) > MAX_PATTERN:
            raise re2.error(f"it has more than {MAX_PATTERN} characters")
        found: LineExpression = re2.compile(f"(?m:{expression})".encode(), options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise UserError(
            f"{expression[:100]!r} is no regular expression: {text}",
            "write one of RE2, which has no look-around and no references to groups",
        ) from None
    return found


@dataclass(slots=True)
class _Page:
    """What one transaction has found behind a segment."""

    rows: list[PackRow]  # packs that may have a match
    last: int  # the last segment in packs that were looked at
    segments: list[LogSegment]  # in no pack; only where all packs were looked at
    before: list[PackRow]  # the pack before the segments


def _page(tx: Tx, num: int, after: int, *, needles: Sequence[int], anew: bool) -> _Page:
    """The next packs and segments; with `anew`, all segments in no pack: lines may begin in any of them."""
    if needles:
        from phalanx.core.logs.grams import may_contain

        bits = packs.grams_of_job(tx, num, after=after, limit=_ROWS)
        ids = [last_id for last_id, one in bits if may_contain(one, needles)]
        rows, size, last = packs.with_last(tx, num, ids), len(bits), bits[-1][0] if bits else after
    else:
        rows = packs.of_job(tx, num, after=after, limit=_ROWS)
        size, last = len(rows), rows[-1].last_id if rows else after
    if size == _ROWS:
        return _Page(rows, last, [], [])
    begin = min(after, packs.last_id(tx, num)) if anew and not size else last
    segments = telemetry.logs_after(tx, num, cursor=begin, max_bytes=_ROW_BYTES)
    return _Page(rows, last, segments, packs.newest(tx, num))


def search(
    platform: Platform,
    num: int,
    wanted: LogSearch,
    after: Place,
    limits: SearchLimits,
    monotonic: Callable[[], float],
    *,
    is_over: bool,
) -> SearchResult:
    """Search the output of a job behind a place; with `is_over`, its last lines get no end any more.

    Raises UserError for an expression that is none, DataUnavailable.
    """
    run = _Search(platform, num, wanted, limits, monotonic)
    run.go(after, is_over=is_over)
    return run.result


class _Missing(Enum):
    """Why there is no pack to search."""

    MATCH = "match"  # it has none, or was deleted
    FILE = "file"


class _Search:
    """One call."""

    def __init__(
        self,
        platform: Platform,
        num: int,
        wanted: LogSearch,
        limits: SearchLimits,
        monotonic: Callable[[], float],
    ) -> None:
        self.result = SearchResult()
        self._platform, self._num, self._limits = platform, num, limits
        self._filter, self._needles = wanted.filter(), wanted.needles()
        self._ranks, self._stream = wanted.ranks, wanted.stream
        self._monotonic = monotonic
        self._until = monotonic() + limits.search_s
        self._read = 0
        # Lines that are open behind the segments at hand; None: those of the last pack.
        self._opened: Mapping[StreamKey, OpenLine] | None = None

    def go(self, behind: Place, *, is_over: bool) -> None:
        """Search from a place on."""
        at = behind[0] - 1
        while True:
            look = partial(_page, num=self._num, after=at, needles=self._needles)
            page = self._platform.store.view(partial(look, anew=self._opened is None))
            if page.last == at and not page.segments:
                break
            with contextlib.closing(self._read_ahead(page.rows)) as found:
                for row, pack in found:
                    if self._stops(at, behind):
                        return
                    if isinstance(pack, LogPack):
                        self._add(pack, behind)
                    elif pack is _Missing.FILE:
                        self.result.unreadable_bytes += row.num_bytes
                    at = row.last_id
                    behind = max(behind, (at, BEHIND))
            if page.last > at or page.rows:
                at, self._opened = page.last, None
                behind = max(behind, (at, BEHIND))
            if page.segments:
                if page.segments[-1].id >= behind[0] and self._stops(at, behind):
                    return
                self._of_segments(page, behind)
                at = page.segments[-1].id
                behind = max(behind, (at, BEHIND))
        if is_over:
            self._flush(at, behind)

    def _stops(self, at: int, behind: Place) -> bool:
        if self._monotonic() <= self._until and self._read <= self._limits.read_bytes:
            return False
        result = self.result
        result.stopped = True
        result.next = result.next or behind
        sizes = self._platform.store.view(lambda tx: packs.bytes_behind(tx, self._num, at))
        result.searched = 1.0 - min(1.0, sizes[0] / max(1, sizes[1]))
        return True

    def _read_ahead(
        self, rows: Sequence[PackRow]
    ) -> Generator[tuple[PackRow, LogPack | _Missing], None, None]:
        """The packs of these rows, in order. While one is searched, threads read the next ones."""
        waiting: deque[tuple[PackRow, Future[LogPack | _Missing]]] = deque()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="packs") as threads:
            try:
                for row in rows:
                    waiting.append((row, threads.submit(self._of_row, row)))
                    if len(waiting) > _AHEAD:
                        first, reading = waiting.popleft()
                        yield first, reading.result()
                while waiting:
                    first, reading = waiting.popleft()
                    yield first, reading.result()
            finally:
                for _, reading in waiting:
                    reading.cancel()

    def _of_row(self, row: PackRow) -> LogPack | _Missing:
        """The pack of a row, unless its row says that it has no match."""
        level = self._filter.level
        if (
            not self._filter.of_times(row.first_at, row.last_at)
            or not row.has(self._ranks, self._stream)
            or (
                level is not None
                and not any(row.levels.get(one.word) for one in LogLevel if one >= level)
            )
        ):
            return _Missing.MATCH
        try:
            return read_pack(self._platform, row) or _Missing.FILE
        except PackDeleted:
            return _Missing.MATCH

    def _of_segments(self, page: _Page, behind: Place) -> None:
        if self._opened is None:
            self._opened = {}
            for row in page.before:
                pack = self._pack(row)
                self._opened = {} if pack is None else pack.open_lines()
        loose = packed(self._num, page.segments, self._opened)
        self._add(loose, behind)
        self._opened = loose.open_lines()

    def _flush(self, at: int, behind: Place) -> None:
        """Look at the lines that are open at the end of all output."""
        if self._opened is None:
            for row in self._platform.store.view(lambda tx: packs.newest(tx, self._num)):
                pack = self._pack(row)
                self._opened = {} if pack is None else pack.open_lines()
        if self._opened:
            lines = matching_lines(packed(self._num, [], self._opened), self._filter, flush=True)
            ends = enumerate(lines, BEHIND + 1)
            found = [replace(one, place=(at, offset)) for offset, one in ends]
            self.result.add(found, behind, self._limits)

    def _add(self, pack: LogPack, behind: Place) -> None:
        self._read += len(pack.body)
        self.result.add(matching_lines(pack, self._filter, flush=False), behind, self._limits)

    def _pack(self, row: PackRow) -> LogPack | None:
        """A pack; None where it was deleted since its row was read, or its file cannot be read."""
        try:
            return read_pack(self._platform, row)
        except PackDeleted:
            return None
