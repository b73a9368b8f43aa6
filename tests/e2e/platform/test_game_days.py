"""Game days: each failure mode on real jobs; its alert fires, its runbook runs, and it resolves.

A control plane runs the jobs on this machine, and the notifier's evaluation reads its scrapes. Minutes
between scrapes are virtual (`game_day.GameDay`); what jobs do is not.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.game_day import LINKS, GameDay
from e2e.platform.harness import BIN, HERE, Platform, corrupt_newest, kill
from phalanx.core.alerts.table import BY_NAME, FailureMode, Severity
from phalanx.core.jobs.faults import JobFault
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.proof, pytest.mark.timeout(600)]
SLOTS = 12
TRAIN = f"{BIN / 'python'} gameday_job.py"
_ENDED = "phalanx_jobs_ended_total"
#: Minutes of real time that load without faults lasts, and the fewest rounds of it.
CLEAN_MINUTES, CLEAN_ROUNDS = float(os.environ.get("CLEAN_MINUTES", "0")), 3
#: Long enough for every window of an hour, and for what keeps an alert firing behind it.
OVER_M = 90


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with slots for a storm of preemptions."""
    one = Platform(tmp_path_factory.mktemp("platform"))
    one.slots = ("--slots", str(SLOTS))
    one.up()
    yield one
    one.down()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file that lets jobs end."""
    return tmp_path / "go"


def training(fault: str, go: Path, ranks: int = 2, **spec: Any) -> dict[str, Any]:
    """A job that runs `gameday_job.py`."""
    return {
        "name": fault,
        "run": f"{TRAIN} {fault} --until={go}",
        "workdir": str(HERE),
        "resources": {"slots_per_node": ranks},
        "checkpoint": {"every": "5 steps"},
        **spec,
    }


def waiting(go: Path, **spec: Any) -> dict[str, Any]:
    """A job without training that ends once the file is there."""
    wait = f"until [ -e {go} ]; do sleep 0.1; done"
    return {"name": "waits", "framework": "none", "run": ["sh", "-c", wait], **spec}


@contextmanager
def game_day(platform: Platform, alert: str, mode: FailureMode, go: Path) -> Iterator[GameDay]:
    """A day on which only this alert, and what it brings along, fires; all jobs end with it.

    The body injects the fault and returns with the alert firing. Behind it the fault ends.
    """
    day = GameDay(platform)
    assert BY_NAME[alert].mode is mode
    assert day.firing() == set()
    yield day
    fired = day.told_of(alert, "firing")
    assert fired["failure_mode"] == mode.value
    assert fired["severity"] == BY_NAME[alert].severity.value
    assert fired["runbook_url"] == f"{LINKS.runbooks}/{alert}.md"
    go.touch()
    finish(platform)
    day.minutes(OVER_M, every=5)
    assert alert not in day.firing()
    assert "ends_at" in day.told_of(alert, "resolved")


def finish(platform: Platform) -> None:
    """Stop what is left, and wait for the end of all jobs."""
    for job in platform.jobs():
        if not job.is_terminal:
            platform.run("stop", job.label, "--grace", "0s", check=False)
    wait_until(lambda: all(one.is_terminal for one in platform.jobs()), "the end of all jobs")


def names(platform: Platform, job: str) -> dict[str, str]:
    """What the names in runbooks stand for."""
    with platform.client() as client:
        node = client.nodes()[0]
        return {
            "j-12": job,
            "n3": node.id,
            "gpu": node.pool,
            "https://phalanx.example.com": str(client.url),
        }


def wait_step(platform: Platform, job: str, step: int) -> None:
    """Wait until a job has made so many steps."""
    wait_until(lambda: (platform.show(job).progress.step or 0) >= step, f"step {step} of {job}")


def test_f1_starts_that_fail(platform: Platform, go: Path) -> None:
    alert = "PhalanxStartsFail"
    with game_day(platform, alert, FailureMode.START, go) as day:
        mount = go.parent / "mount"
        tries = {"start_failed": {"count": 9}}
        job = platform.submit(waiting(go, setup=f"ls {mount}", recovery=tries))
        wait_until(lambda: day.value("phalanx_start_failures_total") >= 3, "three failures")
        day.minutes(1)
        assert day.firing() == {alert}
        day.run_page(alert, names(platform, job))
        mount.mkdir()
        platform.wait_state(job, "running")


def test_f2_a_slow_rank(platform: Platform, go: Path) -> None:
    with game_day(platform, "PhalanxStragglers", FailureMode.STRAGGLER, go) as day:
        job = platform.submit(training("slow-rank", go))
        wait_until(lambda: day.value("straggler_score"), "scores of the ranks")
        day.minutes(25, every=5)
        assert day.firing() == set()  # it has not lasted
        day.minutes(10, every=5)
        assert day.firing() == {"PhalanxStragglers"}
        day.run_page("PhalanxStragglers", names(platform, job))


def test_f3_a_collective_that_does_not_end(platform: Platform, go: Path) -> None:
    with game_day(platform, "PhalanxGangsStall", FailureMode.NETWORK, go) as day:
        job = platform.submit(training("hang", go, stall="3s", recovery={"stalled": {"count": 9}}))
        for count in (1, 2, 3):
            wait_step(platform, job, 10 * count)
            os.kill(platform.rank_pids(job)[1], signal.SIGSTOP)
            wait_until(lambda count=count: day.value("phalanx_stalls_total") >= count, "the stall")
        day.minutes(1)
        assert "PhalanxGangsStall" in day.firing()
        platform.wait_state(job, "running")
        day.run_page("PhalanxGangsStall", names(platform, job))


def test_f4_a_damaged_checkpoint(platform: Platform, go: Path) -> None:
    alert = "PhalanxCheckpointQuarantined"
    with game_day(platform, alert, FailureMode.CHECKPOINT, go) as day:
        job = platform.submit(training("damaged", go, ranks=3))
        wait_step(platform, job, 20)
        corrupt_newest(platform, job)
        wait_until(
            lambda: day.value("phalanx_checkpoints_total", outcome="quarantined"), "quarantine"
        )
        day.minutes(1)
        assert day.firing() == {alert}
        platform.wait_state(job, "running")
        day.run_page(alert, names(platform, job))


def test_f5_losses_that_are_not_finite(platform: Platform, go: Path) -> None:
    alert = "PhalanxTrainingDiverges"
    with game_day(platform, alert, FailureMode.DIVERGENCE, go) as day:
        rollback = {"on_non_finite": "rollback"}
        job = platform.submit(training("diverge", go, training=rollback))
        wait_until(lambda: day.value("phalanx_failures_total", cause="diverged") >= 3, "roll-backs")
        day.minutes(1)
        assert alert in day.firing()
        day.run_page(alert, names(platform, job))


def test_f6_out_of_memory(platform: Platform, go: Path) -> None:
    alert = "PhalanxOutOfMemory"
    with game_day(platform, alert, FailureMode.MEMORY, go) as day:
        job = platform.submit(training("memory", go, recovery={"oom": {"count": 9}}))
        wait_until(lambda: day.value("phalanx_oom_kills_total") >= 3, "three failures")
        day.minutes(1)
        assert alert in day.firing()
        day.run_page(alert, names(platform, job))


def test_f7_a_storm_of_preemptions(platform: Platform, go: Path) -> None:
    alert = "PhalanxPreemptionStorm"
    with game_day(platform, alert, FailureMode.PREEMPTION, go) as day:
        low = [platform.submit(waiting(go, priority=10)) for _ in range(SLOTS)]
        for job in low:
            platform.wait_state(job, "running")
        high = platform.submit(waiting(go, priority=95, resources={"slots_per_node": SLOTS}))
        wait_until(lambda: day.value("phalanx_preemptions_total") >= 10, "ten preemptions")
        platform.wait_state(high, "running")
        day.minutes(1)
        assert alert in day.firing()
        day.run_page(alert, names(platform, low[0]))


def test_f7_nodes_that_are_lost(platform: Platform, go: Path) -> None:
    alert = "PhalanxNodesLost"
    with game_day(platform, alert, FailureMode.PREEMPTION, go) as day:
        job = platform.submit(waiting(go))
        for count in (1, 2, 3):
            platform.wait_state(job, "running")
            supervisor = platform.show(job).nodes[0].pid
            assert supervisor is not None
            kill(supervisor)
            wait_until(
                lambda count=count: day.value("phalanx_nodes_lost_total") >= count, "the loss"
            )
        day.minutes(1)
        assert alert in day.firing()
        day.run_page(alert, names(platform, job))


def test_f8_a_pool_without_free_slots(platform: Platform, go: Path) -> None:
    alert = "PhalanxPoolExhausted"
    with game_day(platform, alert, FailureMode.CONTENTION, go) as day:
        first = platform.submit(waiting(go, resources={"slots_per_node": SLOTS}))
        platform.wait_state(first, "running")
        queued = platform.submit(waiting(go))
        wait_until(lambda: day.value("phalanx_pool_waiting_jobs") >= 1, "the queue")
        day.minutes(5 * 60, every=5)
        assert day.firing() == set()  # a busy afternoon
        day.minutes(70, every=5)
        assert day.firing() == {alert}
        day.run_page(alert, names(platform, queued))


def test_f9_ranks_that_do_not_fit_together(platform: Platform, go: Path) -> None:
    alert = "PhalanxRanksDoNotMatch"
    with game_day(platform, alert, FailureMode.TOPOLOGY, go) as day:
        job = platform.submit(
            training("versions", go, ranks=3, recovery={"start_failed": {"count": 9}})
        )
        wait_until(lambda: day.value("phalanx_preflight_failures_total") >= 3, "three failures")
        day.minutes(1)
        assert day.firing() == {alert}
        day.run_page(alert, names(platform, job))


def test_f10_a_loader_that_is_slow(platform: Platform, go: Path) -> None:
    alert = "PhalanxDataStarvation"
    with game_day(platform, alert, FailureMode.DATA, go) as day:
        job = platform.submit(training("slow-data", go))
        wait_until(lambda: day.value("data_wait_fraction") > 0.3, "the wait for data")
        day.minutes(25, every=5)
        assert day.firing() == set()
        day.minutes(10, every=5)
        assert day.firing() == {alert}
        day.run_page(alert, names(platform, job))


def clean_round(platform: Platform, go: Path) -> None:
    """Load as of every day, to its end: training, jobs that are stopped, paused, preempted, or wrong.

    All slots are in use, and one job waits.
    """
    go.unlink(missing_ok=True)
    trains = [platform.submit(training("clean", go)) for _ in range(2)]
    wrong = platform.submit(waiting(go, run=["sh", "-c", "exit 3"]))
    stopped, paused = (platform.submit(waiting(go)) for _ in range(2))
    low = platform.submit(waiting(go, priority=10, resources={"slots_per_node": 6}))
    for job in (*trains, stopped, paused, low):
        platform.wait_state(job, "running")
    high = platform.submit(waiting(go, priority=90, resources={"slots_per_node": 6}))
    platform.run("pause", paused)
    platform.run("stop", stopped)
    platform.wait_state(high, "running")
    platform.wait_state(low, "queued")
    platform.wait_state(paused, "paused")
    platform.run("resume", paused)
    go.touch()
    for job in (*trains, paused, low, high):
        platform.wait_state(job, "succeeded")
    wait_until(lambda: platform.show(stopped).state == "cancelled", "the stop")
    wait_until(lambda: platform.show(wrong).state == "failed", "the end of what is wrong")


def ended(day: GameDay) -> Counter[str]:
    """The jobs that have ended, by what ended them."""
    faults = [one.value for one in JobFault]
    return Counter({one: int(day.value(_ENDED, fault=one)) for one in faults})


@pytest.mark.timeout(900 + 90 * CLEAN_MINUTES)
def test_load_without_faults_pages_nobody(platform: Platform, go: Path) -> None:
    """`CLEAN_MINUTES=60` is the hour. A round of load is one virtual minute or the time that it took.

    The longer of both: alerts see the jobs as dense as they were, or denser.
    """
    day, begun, rounds = GameDay(platform), time.monotonic(), 0
    before, until = ended(day), begun + CLEAN_MINUTES * 60
    while rounds < CLEAN_ROUNDS or time.monotonic() < until:
        at = time.monotonic()
        clean_round(platform, go)
        rounds += 1
        day.minutes(max(1, round((time.monotonic() - at) / 60)))
        pages = {name for name in day.firing() if BY_NAME[name].severity is Severity.PAGE}
        assert pages == set(), f"round {rounds}: {day.messages}"
    day.minutes(OVER_M, every=5)
    assert [one["alert"] for one in day.messages if one["severity"] == "page"] == []
    assert ended(day) - before == Counter(none=5 * rounds, user=rounds, cancelled=rounds)
    minutes = (time.monotonic() - begun) / 60
    print(f"{rounds} rounds, {7 * rounds} jobs in {minutes:.1f} minutes: {day.messages}")
