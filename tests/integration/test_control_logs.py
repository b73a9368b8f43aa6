"""Output in the control plane: stored up to a limit, collected from files, gaps with their bytes."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig, ScriptedSupervisor, open_rig
from phalanx.executors.protocol import OutputSize, SupervisorStatus
from phalanx.launch import secret_files
from phalanx.schemas.wire import supervision as wire
from phalanx.server.settings import Settings
from phalanx.server.settings_groups.accounting import RetentionSettings
from phalanx.services.lifecycle import leftover_logs
from phalanx.services.retention.expired_data import RetentionProgress, retention_step

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}


def lines(first: int, last: int, width: int = 8) -> bytes:
    """Numbered lines of `width` bytes each."""
    return b"".join(b"%0*d\n" % (width - 1, number) for number in range(first, last))


def started(rig: Rig) -> tuple[int, ScriptedSupervisor]:
    num = rig.submit(resources=SMALL)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    return num, supervisor


def file_of(rig: Rig, num: int, data: bytes, attempt: int = 1) -> Path:
    folder = rig.platform.home.node_dir(num, attempt, 0) / "g000"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "r00000.out").write_bytes(data)
    return folder / "r00000.out"


def told(rig: Rig, num: int, **query: Any) -> list[Any]:
    """Lines of all pages; a gap is (cause, bytes)."""
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


def gone(supervisor: ScriptedSupervisor) -> SupervisorStatus:
    return SupervisorStatus(supervisor.ref, alive=False)


def test_output_on_the_disk_of_another_machine_is_counted(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, lines(0, 2))
    rig.executor.outputs[supervisor.ref] = (
        OutputSize(0, 0, "out", 5016),
        OutputSize(0, 1, "err", 300),
        OutputSize(0, 2, "out", 0),
    )
    rig.executor.bury(supervisor.ref)
    rig.turn(1)
    counted = ["0000000", "0000001", ("unsent", 5000), ("unsent", 300)]
    assert told(rig, num) == counted
    status = replace(gone(supervisor), output=rig.executor.outputs[supervisor.ref])
    leftover_logs.collect_logs(rig.platform, status, rig.clock.now())
    assert told(rig, num) == counted


@pytest.mark.parametrize("budget", [1 << 20, 16])
def test_output_of_a_killed_supervisor_is_collected_from_its_files(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(leftover_logs, "MOST_BYTES", budget)
    num, supervisor = started(rig)
    supervisor.log(0, lines(0, 2))
    file_of(rig, num, lines(0, 7) + b"cut")
    rig.executor.bury(supervisor.ref)
    rig.turn(1)
    whole = [f"{number:07d}" for number in range(7)]
    if budget == 16:
        # Negative control of the whole: with time for 16 bytes the other 27 are counted.
        assert told(rig, num) == [*whole[:4], ("unsent", 27)]
        leftover_logs.collect_logs(rig.platform, gone(supervisor), rig.clock.now())
        assert told(rig, num)[-2:] == whole[4:6]  # repeated, it goes on, and counts less
    else:
        assert told(rig, num) == whole  # an unfinished line waits for its end
        rig.client.stop(num, goal="cancel")
        for ref in list(rig.executor.alive):
            rig.executor.bury(ref)
        rig.turn(60)
        assert rig.job(num).is_terminal
        assert told(rig, num) == [*whole, "cut"]
        leftover_logs.collect_logs(rig.platform, gone(supervisor), rig.clock.now())
        assert told(rig, num) == [*whole, "cut"]


def test_output_that_is_collected_from_files_holds_no_values_of_secrets(rig: Rig) -> None:
    num, supervisor = started(rig)
    secret_files.store_own(
        rig.platform.home.job_secrets_file(num), {"caller": {"DB_PASS": "correct-horse"}}
    )
    file_of(rig, num, b"it is correct-horse\n")
    rig.executor.bury(supervisor.ref)
    rig.turn(1)
    assert told(rig, num) == ["it is *************"]


def test_a_link_in_the_place_of_output_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    num, supervisor = started(rig)
    (tmp_path / "secret").write_bytes(b"secret\n")
    file = file_of(rig, num, b"")
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    rig.executor.bury(supervisor.ref)
    rig.turn(1)
    assert "secret" not in told(rig, num)


def test_the_supervisor_says_what_it_did_not_send(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, lines(0, 1))
    end = wire.LogReport(
        seq=supervisor.next_seq(),
        generation=0,
        rank=0,
        stream="out",
        offset=5000,
        data="",
        end=True,
    )
    supervisor.sync(end)
    again = end.model_copy(update={"seq": supervisor.next_seq()})
    supervisor.sync(again)
    assert told(rig, num) == ["0000000", ("unsent", 4992)]


def test_a_job_has_a_limit_and_keeps_its_beginning_and_its_newest_output(tmp_path: Path) -> None:
    limit = 1 << 20
    settings = Settings(retention=RetentionSettings(log_bytes_per_job="1MiB"))
    with open_rig(tmp_path / "home", settings=settings) as rig:
        num, supervisor = started(rig)
        assert supervisor.assignment.log_limit == limit
        step, width = 32768, 64
        per_step = step // width
        for number in range(64):  # twice the limit
            supervisor.log(number * step, lines(number * per_step, (number + 1) * per_step, width))
        found = told(rig, num)
        gaps = [one for one in found if not isinstance(one, str)]
        assert [cause for cause, _ in gaps] == ["limit"]
        at, missing = found.index(gaps[0]), gaps[0][1]
        assert at * width == limit // 8 and missing + width * (len(found) - 1) == 64 * step
        assert limit * 7 // 8 <= width * (len(found) - 1) <= limit
        assert [int(one) for one in found[at + 1 :]] == list(
            range(at + missing // width, 64 * per_step)
        )
        # Bytes that were deleted are not stored again.
        data = base64.b64encode(lines(1024, 1536, width)).decode()
        supervisor.sync(
            wire.LogReport(
                seq=supervisor.next_seq(),
                generation=0,
                rank=0,
                stream="out",
                offset=65536,
                data=data,
            )
        )
        assert told(rig, num) == found


def test_a_stream_that_was_deleted_whole_is_counted(tmp_path: Path) -> None:
    """Its bytes lie between the beginning of the job's output and its newest: nothing of it stays."""
    settings = Settings(retention=RetentionSettings(log_bytes_per_job="1MiB"))
    with open_rig(tmp_path / "home", settings=settings) as rig:
        num, supervisor = started(rig)
        supervisor.log(0, b"x" * 131_071 + b"\n")
        for half in range(2):
            supervisor.log(half * 160_000, b"y" * 159_999 + b"\n", rank=1)
        for part in range(1, 16):
            supervisor.log(part * 131_072, b"x" * 131_071 + b"\n")
        assert told(rig, num, ranks=[1]) == [("limit", 320_000)]
        supervisor.log(320_000, b"again\n", rank=1)
        assert told(rig, num, ranks=[1]) == [("limit", 320_000), "again"]


def test_a_stream_that_has_expired_whole_is_counted(rig: Rig) -> None:
    num, supervisor = started(rig)
    supervisor.log(0, lines(0, 3))
    rig.clock.advance(100_000)
    rig.retain(logs=3600.0)
    retention_step(rig.platform, RetentionProgress(), rig.clock.now())
    assert told(rig, num) == [("expired", 24)]
