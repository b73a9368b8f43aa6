"""Probe jobs: when they are due, what they show, and that users' figures do not contain them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from integration.rig import Rig, open_rig
from phalanx.cli.app import app
from phalanx.cli.client.session import Session
from phalanx.core.probes import PROBE_PROJECT, PoolProbe, ProbeConfig, is_due, newest_of_pools
from phalanx.schemas.wire import supervision as wire
from phalanx.server.observe.exposition import Exposition
from phalanx.server.settings import ApiSettings, Settings
from phalanx.server.settings_groups.probes import ProbeSettings
from phalanx.services.probes.pool_probes import probes_step

pytestmark = pytest.mark.integration
EVERY_S = 900
NAMES = {
    "phalanx_probe_success",
    "phalanx_probe_open_seconds",
    "phalanx_probe_seconds",
    "phalanx_jobs_ended_total",
    "phalanx_class_jobs_ended_total",
    "phalanx_jobs_finished_total",
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    settings = Settings(
        api=ApiSettings(max_stream_s=0), probes=ProbeSettings.model_validate({"every": "15m"})
    )
    with open_rig(tmp_path / "home", settings=settings) as one:
        yield one


def turn(rig: Rig, seconds: float = 1.0) -> None:
    rig.turn(seconds)
    probes_step(rig.platform, rig.context.settings.probes.resolved(), rig.clock.now())


def probes(rig: Rig) -> list[int]:
    return sorted(one.num for one in rig.client.jobs(project=PROBE_PROJECT).jobs)


def run_probe(rig: Rig, num: int, outcome: str = "succeeded") -> None:
    """Let the newest probe run: two seconds to start, one more to its step, three to its end."""
    rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(1.0)
    supervisor.started(pids=(1,))
    rig.turn(1.0)
    if outcome == "succeeded":
        supervisor.step(0, 1)
        supervisor.ended(outcome=outcome)
    else:
        failure = supervisor.failure("no such mount", cause="start_failed", rank=0)
        supervisor.sync(
            wire.RankFailedReport(seq=supervisor.next_seq(), generation=0, failure=failure)
        )
        supervisor.ended(outcome=outcome, failure=failure)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)


def series(rig: Rig) -> dict[tuple[str, ...], float]:
    found = Exposition(rig.context).samples(rig.clock.now(), NAMES)
    return {
        (name, *(value for _, value in labels)): value for (name, labels), value in found.items()
    }


def test_a_pool_is_probed_at_its_interval_with_one_probe_at_a_time(rig: Rig) -> None:
    turn(rig)
    (first,) = probes(rig)
    spec = rig.client.job(first).spec
    assert (spec["priority"], spec["project"], spec["pool"]) == (0, PROBE_PROJECT, ["local"])
    turn(rig, 2 * EVERY_S)
    assert probes(rig) == [first]  # it has not ended
    run_probe(rig, first)
    assert rig.job(first).state == "succeeded"
    turn(rig, 1.0)
    _, second = probes(rig)
    run_probe(rig, second)
    turn(rig, EVERY_S - 30.0)
    assert probes(rig) == [first, second]
    turn(rig, 60.0)
    assert len(probes(rig)) == 3


def test_a_full_pool_is_not_probed_and_no_job_leaves_for_a_probe(rig: Rig) -> None:
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 4}, priority=0)
    rig.turn(1.0)
    assert rig.job(num).state == "starting"
    turn(rig)
    assert probes(rig) == []
    rig.client.stop(num)
    turn(rig, 60.0)


def test_probes_are_shown_and_exported_with_their_times(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = rig.client.probes()
    assert (before.pool, before.probed, before.ok, before.job) == ("local", True, None, None)
    assert not any(name.startswith("phalanx_probe") for name, *_ in series(rig))
    turn(rig)
    (num,) = probes(rig)
    rig.turn(60.0)
    assert series(rig)["phalanx_probe_open_seconds", "local"] == 60.0
    run_probe(rig, num)
    (found,) = rig.client.probes()
    assert (found.ok, found.state, found.job) == (True, "succeeded", f"j-{num}")
    assert (found.start_s, found.first_step_s) == (62.0, 63.0)
    shown = series(rig)
    assert shown["phalanx_probe_success", "local"] == 1.0
    assert shown["phalanx_probe_open_seconds", "local"] == 0.0
    assert shown["phalanx_probe_seconds", "local", "first_step"] == 63.0
    assert shown["phalanx_probe_seconds", "local", "end"] == found.end_s
    monkeypatch.setattr(Session, "client", lambda self: nullcontext(rig.client))
    said = CliRunner().invoke(app, ["probes"]).output
    assert "local" in said and "ok" in said and "63.0s" in said


def test_probes_that_fail_are_told_and_are_in_no_objective(rig: Rig) -> None:
    turn(rig)
    (num,) = probes(rig)
    run_probe(rig, num, "failed")
    assert rig.job(num).state == "failed"
    (found,) = rig.client.probes()
    assert found.ok is False and "no such mount" in found.message
    shown = series(rig)
    assert shown["phalanx_probe_success", "local"] == 0.0
    assert shown["phalanx_jobs_ended_total", "platform"] == 0.0
    assert shown["phalanx_class_jobs_ended_total", "default", "platform"] == 0.0
    assert shown["phalanx_jobs_finished_total", "failed"] == 1.0
    assert all(one.total == 0 for one in rig.client.objectives(days=30).objectives)
    report = rig.client.costs.report(by="project")
    assert {one.key for one in report.groups} <= {PROBE_PROJECT}


def test_without_an_interval_nothing_is_submitted(rig: Rig) -> None:
    probes_step(rig.platform, ProbeConfig(), rig.clock.now())
    assert probes(rig) == []


def probe(pool: str, at: int, ended_at: int | None = None) -> PoolProbe:
    return PoolProbe(pool, at, "succeeded" if ended_at else "queued", at, ended_at=ended_at)


def test_due_is_decided_by_interval_free_slots_and_the_newest_probe() -> None:
    config = ProbeConfig(every_s=1.0)
    assert is_due(config, None, 1, 0)
    assert not is_due(config, None, 0, 0)
    assert not is_due(ProbeConfig(), None, 1, 0)
    assert not is_due(config, probe("a", 0), 1, 10**9)
    assert not is_due(config, probe("a", 5, 6), 1, 1_000_004)
    assert is_due(config, probe("a", 5, 6), 1, 1_000_005)
    assert ProbeConfig(1.0, ("a",)).includes("a") and not ProbeConfig(1.0, ("a",)).includes("b")


def test_the_newest_of_each_pool_are_found() -> None:
    a3, a2, b1 = probe("a", 3), probe("a", 2, 9), probe("b", 1, 4)
    assert newest_of_pools([a3, a2, b1]) == {"a": (a3, a2), "b": (b1, b1)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": "5s"}, "greater than or equal to 60"),
        ({"pools": ["a"]}, "needs `every`"),
        ({"every": "15m", "run": []}, "at least 1"),
        ({"every": "15m", "pool": "a"}, "Extra inputs"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ProbeSettings.model_validate(given)
