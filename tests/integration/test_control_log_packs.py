"""Packed output: read as before it was packed, searched, limited, expired, and whole after every kill."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from integration.rig import Rig, ScriptedSupervisor, open_rig
from phalanx.core.logs import packs as log_packs_module
from phalanx.errors import StoreCorrupt, UserError
from phalanx.schemas.wire import supervision as wire
from phalanx.server.settings import RetentionSettings, Settings
from phalanx.services.logs import packing, search
from phalanx.services.objects import log_files
from phalanx.services.retention.expired_data import RetentionProgress, retention_step
from phalanx.services.retention.work import deletions_step
from phalanx.standalone import backup
from phalanx.store.logs import packs
from phalanx.store.schema.logs import log_packs
from phalanx.store.tables import log_segments

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 64)
    monkeypatch.setattr(packing, "LOOSE_BYTES", 128)
    monkeypatch.setattr(packing, "IDLE_BYTES", 1)


def started(rig: Rig) -> tuple[int, ScriptedSupervisor]:
    num = rig.submit(resources=SMALL)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    return num, supervisor


def told(rig: Rig, num: int, **query: Any) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = rig.client.logs(num, cursor=cursor, **query)
        found += [
            one.text if one.gap is None else (one.gap.cause, one.gap.num_bytes)
            for one in page.lines
        ]
        if page.cursor == cursor or not page.lines:
            return found
        cursor = page.cursor


def pack(rig: Rig, num: int) -> int:
    """Pack all that there is; returns the number of packs."""
    while packing.pack_job(rig.platform, num, rig.clock.now()):
        pass
    return len(rig.store.view(lambda tx: packs.of_job(tx, num)))


def rows(rig: Rig, table: Any, num: int) -> int:
    query = select(table).where(table.c.job == num)
    return len(rig.store.view(lambda tx: tx.conn.execute(query).all()))


def files(rig: Rig) -> list[Path]:
    return sorted(rig.platform.home.logs_dir.glob("*/*"))


def fill(supervisor: ScriptedSupervisor) -> list[str]:
    """Output of two ranks, cut anywhere; returns the lines as they are shown."""
    at = [0, 0]
    for part in range(30):
        for rank, data in (
            (0, b"step %d: lo" % part),
            (1, b"rank one %d\n" % part),
            (0, b"ss 1\n"),
        ):
            supervisor.log(at[rank], data, rank=rank)
            at[rank] += len(data)
    return [line for part in range(30) for line in (f"rank one {part}", f"step {part}: loss 1")]


def test_output_reads_the_same_before_and_after_it_is_packed(rig: Rig) -> None:
    num, supervisor = started(rig)
    shown = fill(supervisor)
    assert told(rig, num) == shown
    tail, own = told(rig, num, tail=7), told(rig, num, ranks=[1])
    middle = rig.client.logs(num, tail=20).cursor
    assert pack(rig, num) > 5
    assert rows(rig, log_segments, num) == 0 and len(files(rig)) == rows(rig, log_packs, num)
    assert told(rig, num) == shown
    assert told(rig, num, tail=7) == tail and told(rig, num, ranks=[1]) == own
    assert rig.client.logs(num, cursor=middle).lines == []
    supervisor.log(supervisor_offset(shown, 0), b"more\n")
    assert told(rig, num) == [*shown, "more"]
    assert [one.text for one in rig.client.logs(num, cursor=middle).lines] == ["more"]


def supervisor_offset(shown: list[str], rank: int) -> int:
    return sum(len(one) + 1 for one in shown if one.startswith("step") == (rank == 0))


def test_a_reader_in_the_middle_of_an_open_line_gets_it_whole(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"first\nbeg")
    page = rig.client.logs(num)
    assert [one.text for one in page.lines] == ["first"]
    pack(rig, num)
    supervisor.log(9, b"in\nlast")
    assert [one.text for one in rig.client.logs(num, cursor=page.cursor).lines] == ["begin"]
    pack(rig, num)
    found = rig.client.logs(num, cursor=page.cursor)
    assert [one.text for one in found.lines] == ["begin"]
    supervisor.log(16, b" line\n")
    assert [one.text for one in rig.client.logs(num, cursor=found.cursor).lines] == ["last line"]
    assert told(rig, num) == ["first", "begin", "last line"]


class Killed(BaseException):
    """The process ends here."""


def kill(*_: Any, **__: Any) -> Any:
    raise Killed


@pytest.mark.parametrize(
    ("where", "name"),
    [(packs, "begin"), (log_files.LogFiles, "write"), (packs, "finish")],
)
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_point_loses_and_doubles_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, before: bool
) -> None:
    num, supervisor = started(rig)
    shown = fill(supervisor)
    work: Callable[..., Any] = getattr(where, name)

    def after(*args: Any, **rest: Any) -> Any:
        work(*args, **rest)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(where, name, kill if before else after)
        with pytest.raises(Killed):
            packing.pack_job(rig.platform, num, rig.clock.now())
    assert told(rig, num) == shown
    pack(rig, num)
    assert told(rig, num) == shown
    rig.clock.advance(7200)
    packing.logs_step(rig.platform, rig.clock.now())
    ready = rig.store.view(lambda tx: packs.of_job(tx, num))
    assert [one.name for one in files(rig)] == sorted(one.name for one in ready)
    assert told(rig, num) == shown


def test_a_pack_of_segments_that_changed_meanwhile_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num, supervisor = started(rig)
    shown = fill(supervisor)
    write = log_files.LogFiles.write

    def changed(self: log_files.LogFiles, job: int, name: str, data: bytes) -> None:
        write(self, job, name, data)
        monkeypatch.setattr(log_files.LogFiles, "write", write)
        assert packing.pack_job(rig.platform, num, rig.clock.now())

    monkeypatch.setattr(log_files.LogFiles, "write", changed)
    assert not packing.pack_job(rig.platform, num, rig.clock.now())
    assert told(rig, num) == shown
    packing.logs_step(rig.platform, rig.clock.now())
    assert told(rig, num) == shown


def test_the_loop_packs_what_is_much_or_idle(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"x" * 99 + b"\n")
    assert not packing.logs_step(rig.platform, rig.clock.now())
    supervisor.log(100, b"y" * 99 + b"\n")
    assert packing.logs_step(rig.platform, rig.clock.now())
    assert rows(rig, log_segments, num) == 0
    supervisor.log(200, b"z\n")
    assert not packing.logs_step(rig.platform, rig.clock.now())
    rig.clock.advance(700)
    assert packing.logs_step(rig.platform, rig.clock.now())
    assert rows(rig, log_segments, num) == 0
    assert [len(one) for one in told(rig, num)] == [99, 99, 1]


def test_the_limit_of_a_job_counts_packed_output(tmp_path: Path) -> None:
    limit = 1 << 20
    settings = Settings(retention=RetentionSettings(log_bytes_per_job="1MiB"))
    with open_rig(tmp_path / "home", settings=settings) as rig:
        num, supervisor = started(rig)
        supervisor.log(0, b"quiet\n", rank=1)
        step, width = 32768, 64
        per_step = step // width
        for number in range(64):  # twice the limit
            first = number * per_step
            data = b"".join(b"%063d\n" % one for one in range(first, first + per_step))
            supervisor.log(number * step, data)
            if number == 8:
                supervisor.log(6, b"y" * 199 + b"\n", rank=1)
            pack(rig, num)
        found = told(rig, num, ranks=[0])
        gaps = [one for one in found if not isinstance(one, str)]
        assert [cause for cause, _ in gaps] == ["limit"]
        assert gaps[0][1] + width * (len(found) - 1) == 64 * step
        assert limit * 7 // 8 - step <= width * (len(found) - 1) <= limit + step
        assert [int(one) for one in found if isinstance(one, str)][-1] == 64 * per_step - 1
        assert told(rig, num, ranks=[1]) == ["quiet", ("limit", 200)]
        packing.logs_step(rig.platform, rig.clock.now())
        assert len(files(rig)) == rows(rig, log_packs, num)
        # Bytes that were deleted are not stored again.
        data = base64.b64encode(b"%063d\n" % 9).decode()
        seq = supervisor.next_seq()
        supervisor.sync(
            wire.LogReport(seq=seq, generation=0, rank=0, stream="out", offset=65536, data=data)
        )
        assert told(rig, num, ranks=[0]) == found


def test_packs_expire_and_are_counted(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"old line\n")
    pack(rig, num)
    rig.clock.advance(100_000)
    rig.retain(logs=3600.0)
    retention_step(rig.platform, RetentionProgress(), rig.clock.now())
    assert told(rig, num) == [("expired", 9)]
    packing.logs_step(rig.platform, rig.clock.now())
    assert files(rig) == [] and rows(rig, log_packs, num) == 0
    supervisor.log(9, b"new\n")
    assert told(rig, num) == [("expired", 9), "new"]


def test_a_damaged_pack_is_named(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"line\n" * 30)
    pack(rig, num)
    (file,) = files(rig)
    data = file.read_bytes()
    for wrong in (data[:-1], data[:20] + b"????" + data[24:], b"x", b""):
        file.write_bytes(wrong)
        with pytest.raises(StoreCorrupt, match="is damaged"):
            rig.platform.log_files.read(num, file.name)
        assert told(rig, num) == [("unreadable", 150)]
    file.write_bytes(data)
    assert told(rig, num) == ["line"] * 30


def test_a_pack_whose_file_is_gone_is_told_at_its_place(rig: Rig) -> None:
    num, supervisor = started(rig)
    for part in range(3):
        for rank in range(2):
            text = b"part %d of rank %d\n" % (part, rank)
            supervisor.log(part * len(text), text, rank=rank)
        pack(rig, num)
    files(rig)[1].unlink()
    shown = ["part 0 of rank 0", "part 0 of rank 1"]
    last = [one.replace("0 of", "2 of") for one in shown]
    assert told(rig, num) == [*shown, ("unreadable", 17), ("unreadable", 17), *last]
    assert told(rig, num, ranks=[1]) == [shown[1], ("unreadable", 17), last[1]]
    assert told(rig, num, tail=3) == [("unreadable", 17), *last]
    page = rig.client.search_logs(num, text="of rank")
    assert (page.count, page.exact, page.unreadable_bytes) == (4, False, 34)
    assert rig.client.search_logs(num, text="part 0").exact


def test_a_pack_that_is_deleted_while_it_is_read_is_told_as_deleted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"old line\n")
    pack(rig, num)
    read = log_files.LogFiles.read

    def late(self: log_files.LogFiles, job: int, name: str) -> Any:
        monkeypatch.setattr(log_files.LogFiles, "read", read)
        rig.clock.advance(100_000)
        rig.retain(logs=3600.0)
        retention_step(rig.platform, RetentionProgress(), rig.clock.now())
        packing.logs_step(rig.platform, rig.clock.now())
        return read(self, job, name)

    monkeypatch.setattr(log_files.LogFiles, "read", late)
    assert told(rig, num) == [("expired", 9)]


def test_a_line_that_stays_open_over_many_packs_is_read_whole(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"begin ", rank=1)
    for part in range(20):
        supervisor.log(part * 80, b"x" * 79 + b"\n")
        pack(rig, num)
    page = rig.client.logs(num)
    supervisor.log(6, b"end\n", rank=1)
    assert told(rig, num, ranks=[1]) == ["begin end"]
    assert [one.text for one in rig.client.logs(num, cursor=page.cursor).lines] == ["begin end"]
    # Where packs do not repeat it, earlier ones are looked at.
    monkeypatch.setattr(log_packs_module, "MAX_OPENED_BYTES", 0)
    num, supervisor = started(rig)
    supervisor.log(0, b"begin ", rank=1)
    for part in range(20):
        supervisor.log(part * 80, b"x" * 79 + b"\n")
        pack(rig, num)
    page = rig.client.logs(num)
    supervisor.log(6, b"end\n", rank=1)
    assert [one.text for one in rig.client.logs(num, cursor=page.cursor).lines] == ["begin end"]


def found(rig: Rig, num: int, **query: Any) -> list[str]:
    """All lines that match, page by page."""
    lines: list[str] = []
    cursor: str | None = None
    while True:
        page = rig.client.search_logs(num, cursor=cursor, **query)
        lines += [one.text for one in page.lines]
        cursor = page.cursor
        if cursor is None:
            return lines


@pytest.mark.parametrize("packed", [True, False])
def test_lines_are_found_in_packs_and_in_rows(rig: Rig, packed: bool) -> None:
    num, supervisor = started(rig)
    shown = fill(supervisor)
    if packed:
        pack(rig, num)
    at = supervisor_offset(shown, 0)
    supervisor.log(at, b"WARNING: Slow disk\n10% ERROR\r20% done\nERROR \xff bad\nunfinished")
    assert found(rig, num, text="SLOW disk") == ["WARNING: Slow disk"]
    assert found(rig, num, text="step 12: loss") == ["step 12: loss 1"]
    assert found(rig, num, regex=r"^step 1\d: loss 1$") == [
        f"step {one}: loss 1" for one in range(10, 20)
    ]
    assert found(rig, num, level="warning") == ["WARNING: Slow disk", "ERROR \ufffd bad"]
    assert found(rig, num, level="error", text="bad") == ["ERROR \ufffd bad"]
    assert found(rig, num, text="one 3", ranks=[1]) == ["rank one 3"]
    assert found(rig, num, text="one 3", ranks=[0]) == []
    assert found(rig, num, text="20% done") == ["20% done"]
    assert found(rig, num, text="10%") == []
    assert found(rig, num, stream="err") == []
    late = ["WARNING: Slow disk", "20% done", "ERROR \ufffd bad"]
    for limit in (1, 7, 1000):
        assert found(rig, num, limit=limit) == [*shown, *late]
    page = rig.client.search_logs(num, limit=0, text="loss")
    assert (page.count, page.exact, page.searched, page.lines) == (30, True, 1.0, [])
    page = rig.client.search_logs(num, limit=2, text="loss")
    assert page.count == 30 and len(page.lines) == 2 and page.cursor is not None
    assert rig.client.search_logs(num, text="unfinished").count == 0
    rig.client.stop(num, goal="cancel")
    for ref in list(rig.executor.alive):
        rig.executor.bury(ref)
    rig.turn(60)
    assert rig.job(num).is_terminal
    assert found(rig, num, text="unfinished") == ["unfinished"]


def test_lines_are_found_by_time(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"early\n")
    pack(rig, num)
    rig.clock.advance(100)
    middle = rig.client.job(num).submitted_at.fromtimestamp(
        rig.clock.now() / 1e6, rig.client.job(num).submitted_at.tzinfo
    )
    supervisor.log(6, b"late\n")
    assert found(rig, num, until=middle) == ["early"]
    assert found(rig, num, since=middle) == ["late"]


def test_a_search_that_stops_says_how_far_it_came(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num, supervisor = started(rig)
    fill(supervisor)
    pack(rig, num)
    ticks = iter(range(10_000))
    context = rig.context
    monkeypatch.setattr(type(context.clock), "monotonic", lambda self: float(next(ticks)))
    shares, counts, cursor = [], 0, None
    while True:
        page = rig.client.search_logs(num, limit=0, text="loss", cursor=cursor)
        counts += page.count
        shares.append(page.searched)
        cursor = page.cursor
        if cursor is None:
            break
        assert not page.exact
    assert counts == 30 and len(shares) > 3 and shares == sorted(shares) and shares[-1] == 1.0


@pytest.mark.parametrize("regex", ["(", "a" * 999 + "(", r"(?=x)", r"(a)\1", "a{1001}"])
def test_what_is_no_expression_is_refused(rig: Rig, regex: str) -> None:
    num, _ = started(rig)
    with pytest.raises(UserError, match="is no regular expression"):
        rig.client.search_logs(num, regex=regex)
    with pytest.raises(UserError, match="is no place in a search"):
        rig.client.search_logs(num, cursor="1:x")


def test_an_expression_that_explodes_elsewhere_takes_no_time() -> None:
    expression = search.compiled("(a|a|ab?)*(a+)+$c")
    began = time.thread_time()
    assert expression.search(b"a" * 100_000) is None
    assert time.thread_time() - began < 5.0


def test_packs_of_a_deleted_job_are_deleted(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, b"line\n")
    pack(rig, num)
    rig.client.stop(num, goal="cancel")
    for ref in list(rig.executor.alive):
        rig.executor.bury(ref)
    rig.turn(60)
    rig.client.retention.delete(num)
    deletions_step(rig.platform, rig.clock.now())
    assert files(rig) == [] and rows(rig, log_packs, num) == 0


@pytest.mark.sqlite  # a backup of PostgreSQL is that of pg_dump
def test_a_backup_has_packed_output(tmp_path: Path) -> None:
    with open_rig(tmp_path / "home") as rig:
        num, supervisor = started(rig)
        shown = fill(supervisor)
        pack(rig, num)
        home = rig.platform.home
        (home.root / "VERSION").write_text("1")
        backup.back_up(home, tmp_path / "backup")
    shutil.rmtree(home.logs_dir)
    backup.restore(tmp_path / "backup", tmp_path / "home", force=True)
    with open_rig(tmp_path / "home") as rig:
        assert told(rig, num) == shown
