"""The quota of stored output takes that of the jobs that ended first, and never what is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from integration.rig import Rig
from phalanx.schemas.wire import supervision as wire
from phalanx.services.logs import packing
from phalanx.services.retention.expired_data import RetentionProgress, retention_step
from phalanx.services.retention.log_quota import log_quota_step
from phalanx.store import telemetry
from phalanx.store.logs import packs

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}
DAY_S = 86_400.0
LINES = b"abcdefg\n" * 4


def printed(rig: Rig, state: str | None, *, pack: bool = False) -> int:
    """A job with 32 bytes of output that ended in a state; None: it runs."""
    num = rig.submit(resources=SMALL, recovery={"rank_crash": {"count": 0}})
    rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    supervisor.log(0, LINES)
    if state is not None:
        if state == "failed":
            failure = supervisor.failure("it is gone", cause="rank_crash")
            report = wire.RankFailedReport(seq=supervisor.next_seq(), generation=0, failure=failure)
            supervisor.sync(report)
            supervisor.ended(0, state, failure=failure)
        else:
            supervisor.ended(0, state, step=2)
        supervisor.leave()
        rig.turn(1.0)
        assert rig.job(num).state == state
    if pack:
        assert packing.pack_job(rig.platform, num, rig.clock.now())
    return num


def limited(rig: Rig, log_bytes: int) -> None:
    object.__setattr__(
        rig.platform, "retention", replace(rig.platform.retention, log_bytes=log_bytes)
    )


def sweep(rig: Rig) -> None:
    while log_quota_step(rig.platform, rig.clock.now()):
        pass


def left(rig: Rig, *nums: int) -> list[int]:
    """Lines that are left of jobs."""
    return [sum(one.gap is None for one in rig.client.logs(num).lines) for num in nums]


def causes(rig: Rig, num: int) -> list[Any]:
    return [
        None if one.gap is None else (one.gap.cause, one.gap.num_bytes, one.gap.begin, one.gap.end)
        for one in rig.client.logs(num).lines
    ]


def test_the_output_of_the_jobs_that_ended_first_goes(rig: Rig) -> None:
    first = printed(rig, "succeeded", pack=True)
    second, third = printed(rig, "succeeded"), printed(rig, "succeeded")
    folder = rig.platform.home.node_dir(first, 1, 0)
    folder.mkdir(parents=True, exist_ok=True)
    limited(rig, 96)
    sweep(rig)
    assert left(rig, first, second, third) == [4, 4, 4]
    limited(rig, 95)
    sweep(rig)
    assert left(rig, first, second, third) == [0, 4, 4] and not folder.exists()
    assert causes(rig, first) == [("quota", 32, 0, 32)]
    assert "quota of stored output of all jobs" in rig.client.logs(first).lines[0].text
    told = [one.data for one in rig.client.history(first) if one.kind == "expired"]
    assert told == [{"what": "logs", "cause": "quota", "bytes": 32}]
    removed = {(one.kind, one.cause): one for one in rig.client.retention.overview().removed}
    assert (removed["logs", "quota"].items, removed["logs", "quota"].num_bytes) == (1, 32)
    # The file of the pack goes with its row, as those of retention do.
    packing.logs_step(rig.platform, rig.clock.now())
    assert rig.store.view(lambda tx: packs.names_of(tx, first)) == []
    assert not list(rig.platform.home.logs_dir.glob("*/*"))
    assert rig.store.view(telemetry.stored_bytes) == 64


def test_output_that_is_held_stays(rig: Rig) -> None:
    pinned, failed = printed(rig, "succeeded"), printed(rig, "failed")
    other, runs = printed(rig, "succeeded"), printed(rig, None)
    rig.client.retention.pin(pinned)
    rig.retain(failed_logs=10 * DAY_S)
    limited(rig, 1)
    sweep(rig)
    assert left(rig, pinned, failed, other, runs) == [4, 4, 0, 4]
    shown = rig.client.retention.overview().logs
    assert (shown.num_bytes, shown.limit_bytes, shown.over_bytes) == (96, 1, 95)
    rig.clock.advance(11 * DAY_S)
    sweep(rig)
    assert left(rig, pinned, failed, runs) == [4, 0, 4]
    rig.client.retention.unpin(pinned)
    assert [one.label for one in rig.client.retention.overview().expiring_jobs] == [f"j-{pinned}"]
    sweep(rig)
    assert left(rig, pinned, runs) == [0, 4]


def test_a_project_keeps_the_output_of_its_failed_jobs(rig: Rig) -> None:
    failed = printed(rig, "failed")
    project = rig.job(failed).project
    limited(rig, 1)
    shown = rig.client.retention.set_periods(project, failed_logs="30d")
    assert (shown.own, shown.periods["failed_logs"]) == ({"failed_logs": "30d"}, "forever")
    sweep(rig)
    assert left(rig, failed) == [4]
    rig.client.retention.set_periods(project, failed_logs=None)
    sweep(rig)
    assert left(rig, failed) == [0]


def test_output_of_failed_jobs_expires_later(rig: Rig) -> None:
    failed, other = printed(rig, "failed"), printed(rig, "succeeded")
    folder = rig.platform.home.node_dir(failed, 1, 0)
    folder.mkdir(parents=True, exist_ok=True)
    rig.retain(logs=5 * DAY_S, failed_logs=20 * DAY_S)
    ends = {one.kind: one.at for one in rig.job(failed).expires}
    assert ends["logs"] > {one.kind: one.at for one in rig.job(other).expires}["logs"]
    progress = RetentionProgress()
    rig.clock.advance(10 * DAY_S)
    while retention_step(rig.platform, progress, rig.clock.now()):
        pass
    assert left(rig, failed, other) == [4, 0] and folder.is_dir()
    rig.clock.advance(11 * DAY_S)
    assert {one.kind: one.items for one in rig.client.retention.overview().expiring}["logs"] == 1
    while retention_step(rig.platform, progress, rig.clock.now()):
        pass
    assert left(rig, failed) == [0] and not folder.exists()


def test_what_arrives_after_the_quota_took_the_rest_is_read_behind_it(rig: Rig) -> None:
    num = printed(rig, "succeeded")
    limited(rig, 1)
    sweep(rig)
    key = (1, 0, 0, "out")
    late = telemetry.LogSegment(0, num, *key, 32, 0, rig.clock.now(), b"late\n")
    rig.store.transact(lambda tx: telemetry.add_log(tx, late))
    assert causes(rig, num) == [("quota", 32, 0, 32), None]
    sweep(rig)
    assert causes(rig, num) == [("quota", 37, 0, 37)]
    # By its age it would be gone too: from here on the age is the cause of all of it.
    later = replace(late, offset=37)
    rig.store.transact(lambda tx: telemetry.add_log(tx, later))
    rig.clock.advance(5 * DAY_S)
    rig.retain(logs=DAY_S)
    while retention_step(rig.platform, RetentionProgress(), rig.clock.now()):
        pass
    assert causes(rig, num) == [("expired", 42, 0, 42)]
