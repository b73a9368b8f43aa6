"""Every byte that a rank printed is read once and in order, or counted once, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from phalanx.core.logs.segments import LogSegment, StreamKey
from phalanx.services.logs import packing, reading
from phalanx.services.logs.reading import Wanted, look_up, read
from phalanx.services.objects.log_files import LogFiles
from phalanx.services.queries.logs import Cursor, assemble
from phalanx.store import open_store, telemetry
from phalanx.store.logs import packs
from phalanx.store.tables import log_segments, log_volumes

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]
LIMIT = 256
STREAMS: list[StreamKey] = [(1, 0, 0, "out"), (1, 0, 1, "out"), (1, 0, 1, "err"), (1, 1, 0, "out")]
NUMBERS = iter(range(1, 1 << 30))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("output")
    store = open_store(root / "db" / "x.sqlite")
    yield SimpleNamespace(store=store, log_files=LogFiles(root / "logs"), may_act=lambda: None)
    store.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 48)
    monkeypatch.setattr(packing, "LOOSE_BYTES", 48)
    monkeypatch.setattr(reading, "PAGE_BYTES", 64)
    monkeypatch.setattr(reading, "_ROWS", 2)


class Output:
    """One job: what its ranks printed, and what happened to it."""

    def __init__(self, platform: Any, num: int) -> None:
        self.platform, self.num = platform, num
        self.printed = {key: b"" for key in STREAMS}
        self.sent = dict.fromkeys(STREAMS, 0)
        self.lost = dict.fromkeys(STREAMS, 0)
        self.unsaid = dict.fromkeys(STREAMS, 0)
        self.ended: dict[StreamKey, int] = {}
        self.now = 1000

    def act(self, what: str, key: StreamKey, size: int) -> None:
        """One event of a rank, its supervisor, or the packer."""
        self.now += 1
        if what in ("send", "repeat", "skip") and key == STREAMS[0] and self.printed[STREAMS[3]]:
            return  # the next generation has begun
        getattr(self, f"_{what}")(key, size)

    def _print(self, key: StreamKey, size: int) -> None:
        text = self.printed[key]
        while len(text) < len(self.printed[key]) + size:
            at = len(text)
            text += b"\n" if at % 7 == 6 else b"%d" % (at * 7 // 11 % 10)
        self.printed[key] = text

    def _store(self, key: StreamKey, begin: int) -> None:
        data = self.printed[key][begin:]
        fresh = LogSegment(0, self.num, *key, begin, self.unsaid[key], self.now, data)
        if not data:
            return
        self.platform.store.transact(lambda tx: telemetry.add_log(tx, fresh, LIMIT))
        self.lost[key] += self.unsaid[key]
        self.unsaid[key], self.sent[key] = 0, len(self.printed[key])

    def _send(self, key: StreamKey, size: int) -> None:
        self._print(key, size)
        self._store(key, self.sent[key])

    def _repeat(self, key: StreamKey, size: int) -> None:
        if not self.unsaid[key]:
            begin = max(0, self.sent[key] - size)
            self._print(key, size // 2)
            self._store(key, begin)

    def _skip(self, key: StreamKey, size: int) -> None:
        self._print(key, size)
        begin = len(self.printed[key])
        self._print(key, 3)
        self._store(key, begin)

    def _drop(self, key: StreamKey, size: int) -> None:
        self.unsaid[key] = size

    def _end(self, key: StreamKey, size: int) -> None:
        if key == STREAMS[0] or not self.printed[STREAMS[3]]:
            self._print(key, size)
        offset = len(self.printed[key])
        end = LogSegment(0, self.num, *key, offset, 0, self.now, b"")
        self.platform.store.transact(lambda tx: telemetry.end_log(tx, end))
        self.ended[key] = offset

    def _pack(self, key: StreamKey, size: int) -> None:
        packing.pack_job(self.platform, self.num, self.now)

    def _clean(self, key: StreamKey, size: int) -> None:
        self.now += 4000 * 1_000_000
        packing.logs_step(self.platform, self.now)

    def _kill(self, key: StreamKey, size: int) -> None:
        """Kill the packer before or after one of its three steps."""
        where, name = [(packs, "begin"), (LogFiles, "write"), (packs, "finish")][size % 3]
        work = getattr(where, name)

        def dying(*args: Any, **rest: Any) -> Any:
            if size % 2:
                work(*args, **rest)
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, name, dying)
            try:
                packing.pack_job(self.platform, self.num, self.now)
            except Killed:
                pass

    def _race(self, key: StreamKey, size: int) -> None:
        """More output arrives while a file is written."""
        write = LogFiles.write

        def slowly(*args: Any, **rest: Any) -> Any:
            write(*args, **rest)
            self.act("send", key, size * 4)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogFiles, "write", slowly)
            packing.pack_job(self.platform, self.num, self.now)

    def pages(self) -> Iterator[Any]:
        """All lines, page by page."""
        cursor = Cursor()
        while True:
            wish = Wanted((), None, cursor.segment, cursor.open_lines)
            found = self.platform.store.view(lambda tx, wish=wish: look_up(tx, self.num, wish))
            logs = read(self.platform, found)
            lines, rest = assemble(
                logs.segments, logs.marks, logs.begun, logs.bounds, flush=not logs.more
            )
            yield from lines
            if not logs.more:
                return
            cursor = Cursor(logs.last, rest)

    def check(self) -> None:
        """Every byte is there or counted, once and in order."""
        at, lost = dict.fromkeys(STREAMS, 0), dict.fromkeys(STREAMS, 0)
        unsent: dict[StreamKey, tuple[int | None, int | None]] = {}
        for line in self.pages():
            key = (line.attempt, line.generation, line.rank, line.stream)
            gap = line.gap
            if gap is not None and gap.cause == "lost":
                lost[key] += gap.num_bytes
            elif gap is not None and gap.cause == "unsent":
                assert key not in unsent
                unsent[key] = (gap.begin, gap.end)
            elif gap is not None:
                assert gap.cause == "limit"
                assert (gap.begin, gap.num_bytes) == (at[key], gap.end - gap.begin), (line, at)
                at[key] = gap.end
            else:
                text, begin = line.text.encode(), at[key]
                assert self.printed[key][begin : begin + len(text)] == text, (line, begin)
                at[key] += len(text)
                if not line.partial and self.printed[key][at[key] : at[key] + 1] == b"\n":
                    at[key] += 1
        assert (at, lost) == (self.sent, self.lost)
        assert unsent == {
            key: (self.sent[key], end) for key, end in self.ended.items() if end > self.sent[key]
        }

    def check_sizes(self) -> None:
        """The sizes that the limit counts are those of what is stored."""

        def look(tx: Any) -> tuple[int, int, Any]:
            size = func.coalesce(func.sum(func.length(log_segments.c.data)), 0)
            rows = tx.conn.execute(select(size).where(log_segments.c.job == self.num)).scalar_one()
            packed = sum(one.num_bytes for one in packs.of_job(tx, self.num))
            here = log_volumes.c
            query = select(here.stored_bytes, here.loose_bytes).where(here.job == self.num)
            return rows, packed, tx.conn.execute(query).first()

        rows, packed, volume = self.platform.store.view(look)
        if volume is not None:
            assert (rows + packed, rows) == tuple(volume)
            assert rows + packed <= LIMIT


ACTIONS = st.tuples(
    st.sampled_from(
        (
            *("send", "send", "send", "repeat", "skip", "drop", "end"),
            *("pack", "pack", "kill", "race", "clean", "check"),
        )
    ),
    st.sampled_from(STREAMS),
    st.integers(1, 60),
)
A, B, C, D = STREAMS


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ACTIONS, max_size=40))
# An end that was packed, and whose pack the limit deleted.
@example(
    [("send", A, 60), ("send", B, 20), ("end", B, 50)]
    + [("pack", A, 1)] * 3
    + [("send", A, 60), ("pack", A, 1), ("pack", A, 1)] * 8
)
def test_every_byte_is_read_or_counted_once(platform: Any, actions: list[Any]) -> None:
    output = Output(platform, next(NUMBERS))
    for what, key, size in actions:
        if what == "check":
            output.check()
        else:
            output.act(what, key, size)
    output.check()
    output.check_sizes()


def test_the_protected_beginning_does_not_grow_after_a_cut(platform: Any) -> None:
    """Also when the age of output has deleted most of a job's: what was cut lies behind the beginning."""
    output, here = Output(platform, next(NUMBERS)), log_volumes.c
    of_job = here.job == output.num

    def head() -> tuple[int, int]:
        query = select(here.head_id, here.cut_id).where(of_job)
        return tuple(platform.store.view(lambda tx: tx.conn.execute(query).one()))

    while output.num not in platform_cuts(platform):
        output.act("send", A, 40)
    before = head()
    less = log_volumes.update().where(of_job).values(stored_bytes=10)
    platform.store.transact(lambda tx: tx.conn.execute(less))
    output.act("send", A, 20)
    assert head() == before


def platform_cuts(platform: Any) -> set[int]:
    """The jobs of which the limit has deleted output."""
    query = select(log_volumes.c.job).where(log_volumes.c.cut_id > 0)
    return set(platform.store.view(lambda tx: tx.conn.execute(query).scalars().all()))
