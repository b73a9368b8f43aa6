"""Game days: each failure mode on real jobs; its alert fires, its runbook runs, and it resolves.

A control plane runs the jobs on this machine, and the notifier's evaluation reads its scrapes. Minutes
between scrapes are virtual (`game_day.GameDay`); what jobs do is not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.game_day import LINKS, GameDay
from e2e.platform.harness import BIN, HERE, Platform, kill
from phalanx.core.alerts.table import BY_NAME, FailureMode
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.proof, pytest.mark.timeout(600)]
SLOTS = 12
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
        "run": f"{BIN / 'python'} gameday_job.py {fault} --until={go}",
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
    day.minutes(2)  # a group of alerts waits for half a minute before it is told
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
