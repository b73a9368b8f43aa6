"""What is old enough goes, a little at a time; what somebody may still need stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import func, select

from integration.rig import Rig
from phalanx.services.lifecycle import code as code_service
from phalanx.services.retention import expired_data as retention
from phalanx.services.retention.expired_data import RetentionProgress, retention_step
from phalanx.store.schema.metrics import metric_chunks
from phalanx.store.tables import commands, jobs, log_segments

pytestmark = pytest.mark.integration
DAY_S = 86_400
SMALL = {"nodes": 1, "slots_per_node": 1}


def days(number: float) -> float:
    return number * DAY_S


def started(rig: Rig) -> tuple[int, object]:
    num = rig.submit(resources=SMALL)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    for step in range(3):
        supervisor.step(0, step)
        supervisor.log(step * 4, b"abc\n")
    return num, supervisor


def ended(rig: Rig) -> int:
    num, supervisor = started(rig)
    supervisor.ended(0, "succeeded", step=2)
    supervisor.leave()
    rig.turn()
    assert rig.job(num).state == "succeeded"
    return num


def rows(rig: Rig, table, num: int) -> int:
    query = select(func.count()).where(table.c.job == num)
    return rig.store.view(lambda tx: tx.conn.execute(query).scalar_one())


def kept(rig: Rig, num: int) -> tuple[int, int, int]:
    return tuple(rows(rig, one, num) for one in (log_segments, metric_chunks, commands))


def with_periods(
    rig: Rig, logs: float | None = None, metrics: float | None = None
) -> RetentionProgress:
    """A new sweep, with these periods of the platform."""
    rig.retain(logs=logs, metrics=metrics)
    return RetentionProgress()


def sweep_all(rig: Rig, sweep: RetentionProgress) -> int:
    steps = 1
    while retention_step(rig.platform, sweep, rig.clock.now()):
        steps += 1
    return steps


def node_folder(rig: Rig, num: int) -> Path:
    folder = rig.platform.home.node_dir(num, 1, 0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "out").write_text("abc")
    return folder


def test_output_and_metrics_go_when_they_are_old(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS", 2)
    monkeypatch.setattr(retention, "JOBS", 1)
    first, second = ended(rig), ended(rig)
    folders = [node_folder(rig, num) for num in (first, second)]
    code = rig.platform.home.attempt_dir(first, 1) / "code"
    code.mkdir()
    rig.clock.advance(10 * DAY_S)
    young = ended(rig)
    sweep = with_periods(rig, days(5), days(20))
    assert sweep_all(rig, sweep) > 3
    assert kept(rig, first) == kept(rig, second) == (0, 3, 0)
    assert kept(rig, young) == (3, 3, 1)
    assert not any(one.exists() for one in folders) and code.is_dir()
    (gap,) = rig.client.logs(first).lines
    assert gap.gap is not None and (gap.gap.cause, gap.gap.num_bytes) == ("expired", 12)
    assert len(rig.client.logs(young).lines) == 3
    rig.clock.advance(11 * DAY_S)
    sweep_all(rig, sweep)
    assert [kept(rig, num) for num in (first, second, young)] == [(0, 0, 0)] * 2 + [(0, 3, 0)]
    assert rig.job(first).state == "succeeded" and list(rig.client.history(first))
    assert not rig.client.metrics(first).series


def test_a_job_that_runs_for_long_keeps_its_newest_output_and_its_launch(rig: Rig) -> None:
    num, supervisor = started(rig)
    folder = node_folder(rig, num)
    rig.clock.advance(30 * DAY_S)
    supervisor.log(12, b"new\n")
    sweep_all(rig, with_periods(rig, days(5), days(5)))
    gap, new = rig.client.logs(num).lines
    assert (gap.gap.cause, gap.gap.num_bytes, new.text) == ("expired", 12, "new")
    assert kept(rig, num) == (1, 3, 1) and folder.is_dir()
    supervisor.log(8, b"abc\nnew\nlast\n")  # sent again from before: known bytes stay known
    assert [one.text for one in rig.client.logs(num).lines[1:]] == ["new", "last"]


def test_without_ages_nothing_goes(rig: Rig) -> None:
    num = ended(rig)
    rig.clock.advance(1000 * DAY_S)
    sweep_all(rig, with_periods(rig))
    assert kept(rig, num) == (3, 3, 0)


def archive(rig: Rig, digest: str, age_days: float) -> Path:
    path = code_service.archive_path(rig.platform.home, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    at_s = rig.clock.now() / 1e6 - age_days * DAY_S
    os.utime(path, (at_s, at_s))
    return path


def with_code(rig: Rig, num: int, digest: str) -> None:
    named = jobs.update().where(jobs.c.num == num).values(code_digest=digest)
    rig.store.transact(lambda tx: tx.conn.execute(named))


@pytest.mark.parametrize("used", [True, False])
def test_code_goes_a_week_after_its_last_job_was_over(rig: Rig, used: bool) -> None:
    over, runs = ended(rig), started(rig)[0]
    digests = ["a" * 64, "b" * 64, "c" * 64, "d" * 64]
    if used:
        with_code(rig, over, digests[0])
        with_code(rig, runs, digests[1])
    paths = [archive(rig, digest, age) for digest, age in zip(digests, (8, 8, 8, 6), strict=True)]
    code_service.has(rig.platform, digests[2])  # somebody is about to submit with it
    os.utime(paths[2], (rig.clock.now() / 1e6,) * 2)
    sweep_all(rig, with_periods(rig))
    assert [one.exists() for one in paths] == [used, used, True, True]
    rig.clock.advance(8 * DAY_S)
    sweep_all(rig, with_periods(rig))
    assert [one.exists() for one in paths] == [False, used, False, False]


def test_whoever_asks_for_an_archive_keeps_it_from_going(rig: Rig) -> None:
    path, before_s = archive(rig, "a" * 64, 8), rig.clock.now() / 1e6 - 7 * DAY_S
    home = rig.platform.home
    assert code_service.unused_since(home, before_s) == ["a" * 64]
    assert code_service.has(rig.platform, "a" * 64) and not code_service.has(rig.platform, "b" * 64)
    code_service.remove(
        rig.platform, "a" * 64, before_s
    )  # it was asked for since it was found idle
    assert path.exists() and code_service.unused_since(home, before_s) == []
