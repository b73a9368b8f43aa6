"""The status of a served PyTorchJob: recorded lives of the training-operator, and single decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core.serving.conditions import ConditionKind
from phalanx.core.serving.life import (
    JobPhase,
    LifeStatus,
    ObjectDemand,
    ReplicaCounts,
    SeenJob,
    ServedObject,
    demand,
    next_look_s,
    reflect,
    refuse,
)

pytestmark = pytest.mark.unit
LIVES = yaml.safe_load(
    (
        Path(__file__).parents[3] / "fixtures" / "operator" / "training_operator_lives.yaml"
    ).read_text()
)
WORDS = {"active": "Running", "succeeded": "Succeeded", "failed": "Failed"}


def wanted_of(life: dict[str, Any], step: dict[str, Any]) -> ServedObject:
    return ServedObject(
        kind="PyTorchJob",
        namespace="team",
        name="llm",
        replicas={role: int(text.split()[0]) for role, text in life["roles"].items()},
        suspended=step.get("suspend", False),
        deadline_s=life.get("deadline"),
        ttl_s=life.get("ttl"),
        backoff_limit=life.get("backoff"),
        by_exit_code=frozenset(role for role, text in life["roles"].items() if "ExitCode" in text),
    )


def seen_in(step: dict[str, Any]) -> SeenJob | None:
    if step["job"] is None:
        return None
    replicas = {
        role: ReplicaCounts(
            **{key: sum(one.startswith(word) for one in pods) for key, word in WORDS.items()}
        )
        for role, pods in step["pods"].items()
    }
    job = dict(step["job"])
    return SeenJob(phase=JobPhase(job.pop("phase")), replicas=replicas, **job)


def shown(status: LifeStatus, *, times: bool) -> list[dict[str, Any]]:
    return [
        {
            "type": one.kind,
            "status": one.holds,
            "reason": one.reason,
            "message": one.message,
            **({"changed": one.changed_s} if times else {}),
        }
        for one in status.conditions
    ]


def names(conditions: list[dict[str, Any]]) -> list[str]:
    return [one["type"] if one["status"] else f"-{one['type']}" for one in conditions]


@pytest.mark.parametrize("life", LIVES, ids=[one["life"] for one in LIVES])
def test_a_recorded_life_of_the_training_operator_is_reproduced(life: dict[str, Any]) -> None:
    status, told = LifeStatus(), set()
    same = not any("conditions" in one.get("differs", {}) for one in life["steps"])
    for step in life["steps"]:
        wanted, seen, now_s = wanted_of(life, step), seen_in(step), step["at"]
        deleted = demand(status, wanted, seen, now_s) is ObjectDemand.DELETE
        found = reflect(status, wanted, seen, now_s)
        status = found.status
        differs = step.get("differs", {})
        assert differs == {} or differs["because"]
        at = f"at {now_s}"
        if "conditions" in differs:
            assert names(shown(status, times=False)) == differs["conditions"], at
        else:
            conditions = step["conditions"]
            if not same:
                conditions = [
                    {k: v for k, v in one.items() if k != "changed"} for one in conditions
                ]
            assert shown(status, times=same) == conditions, at
        counts = {r: [c.active, c.succeeded, c.failed] for r, c in status.replicas.items()}
        assert counts == differs.get("replicas", step["replicas"]), at
        assert status.start_s == step["start"], at
        assert status.completed_s == differs.get("completed", step["completed"]), at
        fresh = [one for one in found.events if (one.reason, one.about) not in told]
        told |= {(one.reason, one.about) for one in fresh}
        kinds = [f"{'Warning' if one.warning else 'Normal'} {one.reason}" for one in fresh]
        expected = differs.get("events", step["events"])
        expected = [
            one if " " in one else f"{'Warning' if 'Restart' in one else 'Normal'} {one}"
            for one in expected
        ]
        assert sorted(set(kinds)) == sorted(set(expected)), at
        assert deleted == step.get("deleted", False), at


JOB = ServedObject(kind="PyTorchJob", namespace="team", name="llm", replicas={"Master": 1})
RUNNING = SeenJob(phase=JobPhase.RUNNING, replicas={"Master": ReplicaCounts(active=1)})


def suspended(**more: Any) -> ServedObject:
    return ServedObject(
        kind="PyTorchJob",
        namespace="team",
        name="llm",
        replicas={"Master": 1},
        suspended=True,
        **more,
    )


def test_a_new_object_is_submitted_once() -> None:
    assert demand(LifeStatus(), JOB, None, 0) is ObjectDemand.SUBMIT
    assert demand(LifeStatus(), suspended(), None, 0) is ObjectDemand.NOTHING
    begun = reflect(LifeStatus(), JOB, SeenJob(phase=JobPhase.WAITING), 0).status
    # Its job was deleted: it is told, and no second one is made.
    assert demand(begun, JOB, None, 5) is ObjectDemand.NOTHING
    lost = reflect(begun, JOB, None, 5).status
    assert lost.holds(ConditionKind.FAILED)
    assert lost.conditions[-1].message == "PyTorchJob llm is failed because its job was deleted."
    assert demand(lost, JOB, None, 9) is ObjectDemand.NOTHING


def test_a_suspension_pauses_and_its_end_resumes_what_it_had_paused() -> None:
    status = reflect(LifeStatus(), JOB, RUNNING, 0).status
    assert demand(status, suspended(), RUNNING, 1) is ObjectDemand.PAUSE
    stopping, paused = (SeenJob(phase=one) for one in (JobPhase.STOPPING, JobPhase.PAUSED))
    assert demand(status, suspended(), stopping, 1) is ObjectDemand.NOTHING
    status = reflect(status, suspended(), stopping, 1).status
    assert status.holds(ConditionKind.SUSPENDED)
    # It is wanted again before it has stopped: it is resumed when it has.
    assert demand(status, JOB, stopping, 2) is ObjectDemand.NOTHING
    assert reflect(status, JOB, stopping, 2).status == status
    assert demand(status, JOB, paused, 3) is ObjectDemand.RESUME
    found = reflect(status, JOB, SeenJob(phase=JobPhase.WAITING), 3)
    assert [one.reason for one in found.events] == ["PyTorchJobResumed"]
    assert found.status.start_s == 3


def test_a_pause_in_phalanx_is_shown_and_left_alone() -> None:
    status = reflect(LifeStatus(), JOB, RUNNING, 0).status
    paused = SeenJob(phase=JobPhase.PAUSED)
    assert demand(status, JOB, paused, 1) is ObjectDemand.NOTHING
    found = reflect(status, JOB, paused, 1).status
    assert not found.holds(ConditionKind.RUNNING)
    assert found.conditions[-1].reason == "PyTorchJobPaused"
    again = reflect(found, JOB, RUNNING, 2).status
    assert again.holds(ConditionKind.RUNNING)


def test_a_job_that_has_ended_ends_its_object_also_where_that_is_suspended_or_late() -> None:
    late = ServedObject(
        kind="PyTorchJob", namespace="team", name="llm", replicas={"Master": 1}, deadline_s=5
    )
    done = SeenJob(phase=JobPhase.SUCCEEDED)
    status = reflect(LifeStatus(), late, RUNNING, 0).status
    assert reflect(status, late, done, 99).status.holds(ConditionKind.SUCCEEDED)
    assert reflect(status, suspended(), done, 99).status.holds(ConditionKind.SUCCEEDED)


def test_a_finished_object_cancels_what_still_runs_and_is_deleted_when_its_time_is_over() -> None:
    wanted = ServedObject(
        kind="PyTorchJob",
        namespace="team",
        name="llm",
        replicas={"Master": 1},
        deadline_s=5,
        ttl_s=10,
    )
    status = reflect(LifeStatus(), wanted, RUNNING, 0).status
    assert next_look_s(status, wanted) == 5
    assert demand(status, wanted, RUNNING, 5) is ObjectDemand.CANCEL
    status = reflect(status, wanted, RUNNING, 5).status
    assert demand(status, wanted, RUNNING, 6) is ObjectDemand.CANCEL  # the first request was lost
    assert next_look_s(status, wanted) == 16
    gone = SeenJob(phase=JobPhase.CANCELLED)
    assert demand(status, wanted, gone, 15) is ObjectDemand.NOTHING
    assert demand(status, wanted, gone, 16) is ObjectDemand.DELETE


def test_what_cannot_become_a_job_is_refused_with_the_reason() -> None:
    found = refuse(LifeStatus(), JOB, "line 3: no", 7)
    assert found.status.holds(ConditionKind.FAILED)
    assert found.status.conditions[-1].reason == "PyTorchJobFailedValidation"
    assert found.status.completed_s == 7
    assert found.events[0].message == "PyTorchJob llm is refused: line 3: no"
    assert refuse(found.status, JOB, "line 3: no", 8) == type(found)(found.status)


def test_a_cancelled_job_and_a_failure_with_a_cause_are_told() -> None:
    status = reflect(LifeStatus(), JOB, RUNNING, 0).status
    found = reflect(status, JOB, SeenJob(phase=JobPhase.CANCELLED), 4).status
    assert found.conditions[-1].message.endswith("is failed because its job was cancelled.")
    bad = SeenJob(phase=JobPhase.FAILED, failed_role="Master", message="ValueError: lr")
    found = reflect(status, JOB, bad, 4).status
    said = "PyTorchJob llm is failed because 1 Master replica(s) failed. ValueError: lr"
    assert found.conditions[-1].message == said


def test_a_job_that_lost_its_slots_restarts() -> None:
    status = reflect(LifeStatus(), JOB, RUNNING, 0).status
    found = reflect(status, JOB, SeenJob(phase=JobPhase.WAITING), 4).status
    assert found.holds(ConditionKind.RESTARTING)
    assert not found.holds(ConditionKind.RUNNING)
