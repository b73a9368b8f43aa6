"""Metrics that scripts send to the API: what is stored, what is answered, and what the token permits."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from integration.rig import URL, Rig, ScriptedSupervisor
from integration.test_control_studies import Bench
from phalanx.core.contract.reporting import ReportingPlace
from phalanx.core.gang.failures import Failure
from phalanx.core.reasons import Cause
from phalanx.errors import Unauthenticated, UserError
from phalanx.schemas.api.telemetry import PostedPoint
from phalanx.sdk import PhalanxClient
from phalanx.services.lifecycle import posted_metrics
from phalanx.store.studies import trial_reports

pytestmark = pytest.mark.integration


@pytest.fixture
def supervisor(rig: Rig) -> ScriptedSupervisor:
    num = rig.submit()
    rig.turn()
    one = rig.supervisor(num)
    one.ready()
    one.started()
    return one


def token_of(one: ScriptedSupervisor, **changes: int) -> str:
    place = {"job": one.ref.job, "attempt": one.ref.attempt, "generation": 0, "node_rank": 0}
    return ReportingPlace(**{**place, **changes}).token(one.token)


def client_of(rig: Rig, token: str) -> PhalanxClient:
    return PhalanxClient(URL, token, transport=rig.transport)


def point(step: int, value: float | str = 0.5, name: str = "loss", **rest: Any) -> PostedPoint:
    return PostedPoint(name=name, value=value, step=step, **rest)


def test_points_become_series_and_the_step_of_the_job(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    sent = [point(7), point(7, 0.9, "accuracy"), point(8, 0.25), point(9, "nan")]
    with client_of(rig, token_of(supervisor)) as client:
        for _ in range(2):  # the same again changes nothing
            answer = client.post_metrics(1, sent, rank=2)
        assert not answer.stop and not answer.reason
    found = {one.name: one for one in rig.client.metrics(1).series}
    assert found["loss"].rank == 2 and found["loss"].values == [0.5, 0.25]
    assert found["accuracy"].steps == [7]
    supervisor.sync()  # a heartbeat that knows no step leaves it
    assert rig.job(1).progress.step == 9
    supervisor.failed()
    supervisor.ended(outcome="failed")
    assert rig.job(1).progress.high_water_step == 9, "which refills the budget of restarts"


def test_the_token_is_for_one_node_of_one_generation_and_opens_nothing_else(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    good = token_of(supervisor)
    forged = [
        "",
        "wrong",
        supervisor.token,
        rig.context.admin.token,
        f"2{good[1:]}",
        good.replace(".0.", ".1.", 1),
        token_of(supervisor, node_rank=5),
        f"9999999999999999999999.1.0.0.{'0' * 64}",
    ]
    for token in forged:
        with client_of(rig, token) as client, pytest.raises(Unauthenticated):
            client.post_metrics(1, [point(1)])
    with client_of(rig, good) as client:
        with pytest.raises(UserError, match="rank 7"):
            client.post_metrics(1, [point(1)], rank=7)
        with pytest.raises(Unauthenticated):
            client.post_metrics(2, [point(1)])
        with pytest.raises(Unauthenticated):
            client.job(1)
    assert supervisor.post(supervisor.request(), good).status_code == 401
    assert rig.client.metrics(1).series == []


def test_the_answer_says_why_to_stop(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    with client_of(rig, token_of(supervisor)) as client:
        rig.client.stop(1, goal="pause", grace_s=30)
        answer = client.post_metrics(1, [point(3)])
        assert answer.stop and answer.reason == "pause_requested"
        assert answer.left_s is not None and 0 < answer.left_s <= 30
        assert rig.client.metrics(1).names == ["loss"], "what arrives before the end counts"


def test_a_generation_that_is_over_adds_nothing(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    failure = Failure(Cause.RANK_CRASH, 0, 0, rig.clock.now(), "killed")
    supervisor.failed(message=failure.message)
    supervisor.ended(outcome="failed")
    with client_of(rig, token_of(supervisor)) as client:
        answer = client.post_metrics(1, [point(3)])
    assert answer.stop and answer.reason == "superseded"
    assert rig.client.metrics(1).names == []


def test_a_trainer_of_transformers_is_understood(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    status = {
        "progressPercentage": 40,
        "estimatedRemainingSeconds": 12,
        "lastUpdatedTime": "2026-01-01T00:00:00+00:00",
        "metrics": [
            {"name": "loss", "value": "0.125"},
            {"name": "grad_norm", "value": "nan"},
            {"name": "current_step", "value": "40"},
            {"name": "total_steps", "value": "100"},
        ],
    }
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        headers = {"Authorization": f"Bearer {token_of(supervisor)}"}
        path = "/api/v1/jobs/1/trainer-status?rank=0"
        answer = http.post(path, json={"trainerStatus": status}, headers=headers)
        assert (answer.status_code, answer.json()["stop"]) == (200, False)
        bad = {"trainerStatus": {"metrics": [{"name": "loss", "value": "low"}]}}
        answer = http.post(path, json=bad, headers=headers)
        assert answer.status_code == 400 and "'low' is not a number" in answer.json()["message"]
    found = {one.name: (one.steps, one.values) for one in rig.client.metrics(1).series}
    assert found["loss"] == ([40], [0.125])
    assert found["progress_percent"] == ([40], [40.0])
    assert "grad_norm" not in found and "current_step" not in found


def test_the_names_of_metrics_are_bounded(
    rig: Rig, supervisor: ScriptedSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posted_metrics, "MAX_NAMES", 3)
    with client_of(rig, token_of(supervisor)) as client:
        client.post_metrics(1, [point(1, name=f"m{index}") for index in range(3)])
        client.post_metrics(1, [point(2, name="m0")])
        with pytest.raises(UserError, match="may have 3"):
            client.post_metrics(1, [point(1, name="one_more")])


def test_the_objective_of_a_study_is_reported_by_epoch(rig: Rig) -> None:
    bench = Bench(rig, lambda params, unit: 0.0)
    bench.submit()
    bench.loops()
    rig.turn()
    one = rig.supervisor(1)
    one.ready()
    one.started()
    name = "val_loss"
    with client_of(rig, token_of(one)) as client:
        client.post_metrics(
            1, [point(10, 0.5, name), point(10, 0.4, name, epoch=1), point(20, 0.9, name, epoch=1)]
        )
    rows = rig.store.view(lambda tx: trial_reports.of_jobs(tx, [1]))
    assert [(row.unit, row.value) for row in rows] == [(1, 0.4)]
