"""PyTorchJobs as jobs of a real control plane: every look of the operator at an object, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig
from integration.served_objects import Object, ServedObjects, end, pytorchjob, serving, start
from phalanx.errors import ExecutorUnavailable, PermissionDenied, ServerUnavailable
from phalanx.operator.kinds import JOB_ANNOTATION, UID_LABEL, ObjectKey
from phalanx.operator.pytorchjobs import PyTorchJobKind

pytestmark = pytest.mark.integration


@pytest.fixture
def served(rig: Rig, tmp_path: Path) -> Iterator[ServedObjects]:
    with serving(rig, tmp_path) as one:
        yield one


def test_an_object_becomes_a_job_and_tells_its_life(served: ServedObjects) -> None:
    key = served.apply(pytorchjob())
    served.look(key)
    view = served.rig.job(1)
    assert (view.name, view.project, view.num_nodes) == ("llm", "vision", 2)
    assert view.labels["paper"] == "one"
    one = served.object(key)
    assert one["metadata"]["annotations"][JOB_ANNOTATION] == view.url
    pods = view.spec["kubernetes"]["labels"]
    assert pods["training.kubeflow.org/job-name"] == "llm"
    assert pods[UID_LABEL] == one["metadata"]["uid"]
    assert served.conditions(key) == ["Created"]
    supervisors = start(served)
    served.look(key)
    assert served.conditions(key) == ["Created", "Running"]
    assert served.replicas(key) == {"Master": {"active": 1}, "Worker": {"active": 1}}
    end(served, supervisors)
    assert served.look(key) is None
    assert served.conditions(key) == ["Created", "-Running", "Succeeded"]
    assert served.replicas(key) == {"Master": {"succeeded": 1}, "Worker": {"succeeded": 1}}
    status = served.object(key)["status"]
    assert status["completionTime"] >= status["startTime"]
    assert status["replicaStatuses"]["Worker"]["selector"] == (
        "training.kubeflow.org/job-name=llm,training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/replica-type=worker"
    )
    assert [reason for reason, _ in served.events()] == ["PyTorchJobSucceeded"]


def test_looks_again_and_again_and_a_new_operator_change_nothing(served: ServedObjects) -> None:
    key = served.apply(pytorchjob())
    for _ in range(3):
        served.look(key)
        served.reborn()
    assert [one.num for one in served.rig.client.jobs().jobs] == [1]
    start(served)
    served.look(key)
    version = served.object(key)["metadata"]["resourceVersion"]
    served.reborn()
    served.look(key)
    assert served.object(key)["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("lost", ["answer", "status"])
def test_a_crash_after_the_submission_makes_no_second_job(served: ServedObjects, lost: str) -> None:
    key = served.apply(pytorchjob())
    if lost == "answer":
        submit = served.reconciler.jobs.submit

        def unheard(*args):
            submit(*args)
            raise ServerUnavailable("the connection was lost")

        served.reconciler.jobs.submit = unheard  # type: ignore[method-assign]
        with pytest.raises(ServerUnavailable):
            served.look(key)
    else:
        served.api.denied["update", "pytorchjobs"] = "not now"
        with pytest.raises(Exception, match="not now"):
            served.look(key)
        served.api.denied.clear()
    served.reborn()
    served.look(key)
    assert [one.num for one in served.rig.client.jobs().jobs] == [1]
    assert served.conditions(key) == ["Created"]


def test_a_deleted_object_cancels_its_job_and_one_made_anew_gets_another(
    served: ServedObjects,
) -> None:
    key = served.apply(pytorchjob())
    served.look(key)
    served.cluster.delete(key, served.object(key)["metadata"]["uid"])
    served.reborn()
    served.look(key)
    assert served.rig.job(1).state == "cancelled"
    served.apply(pytorchjob())
    served.look(key)
    assert [one.num for one in served.rig.client.jobs().jobs] == [2, 1]
    # Deleted and made anew before the operator looked.
    served.cluster.delete(key, served.object(key)["metadata"]["uid"])
    served.apply(pytorchjob())
    served.look(key)
    assert [one.state for one in served.rig.client.jobs().jobs] == [
        "queued",
        "cancelled",
        "cancelled",
    ]


def test_nothing_is_concluded_while_the_api_is_away_or_its_mirror_lags(
    served: ServedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = served.apply(pytorchjob())
    served.look(key)
    now_s = served.rig.clock.now() // 1_000_000
    monkeypatch.setattr(served.cluster._objects[key.kind, ""], "find", lambda *_: None)
    served.reconciler.reconcile(key, now_s)
    assert served.rig.job(1).state == "queued"
    served.api.away = True
    with pytest.raises(ExecutorUnavailable):
        served.reconciler.reconcile(key, now_s)
    served.api.away = False
    assert served.rig.job(1).state == "queued"


def test_a_suspension_pauses_and_its_end_resumes(served: ServedObjects) -> None:
    key = served.apply(pytorchjob(suspend=True))
    served.look(key)
    assert served.rig.client.jobs().jobs == []
    assert served.conditions(key) == ["Created", "Suspended"]
    served.change(key, suspend=False)
    served.look(key)
    # The last one is what `kubectl get` shows.
    assert served.conditions(key) == ["-Suspended", "Created"]
    supervisors = start(served)
    served.look(key)
    served.change(key, suspend=True)
    assert served.look(key) == 2.0
    assert served.rig.job(1).state == "stopping"
    assert served.conditions(key) == ["Created", "-Running", "Suspended"]
    assert served.state_column(key) == "Suspended"
    end(served, supervisors, "stopped")
    served.look(key)
    assert served.rig.job(1).state == "paused"
    served.change(key, suspend=False)
    served.look(key)
    assert served.rig.job(1).state == "queued"
    start(served, attempt=2)
    served.look(key)
    assert served.conditions(key) == ["-Suspended", "Created", "Running"]
    assert [reason for reason, _ in served.events()] == [
        "PyTorchJobSuspended",
        "PyTorchJobResumed",
        "PyTorchJobSuspended",
        "PyTorchJobResumed",
    ]


def test_a_failed_worker_restarts_the_gang(served: ServedObjects) -> None:
    key = served.apply(pytorchjob(backoffLimit=3))
    served.look(key)
    supervisors = start(served)
    served.look(key)
    supervisors[1].failed(rank=1)
    served.look(key)
    assert served.conditions(key) == ["Created", "Restarting"]
    assert served.replicas(key)["Worker"] == {"failed": 1}
    for one in supervisors:
        one.ended(0, "failed", step=1)
    for one in supervisors:
        one.started(1, pids=(8,))
    served.look(key)
    assert served.conditions(key) == ["Created", "Running"]
    said = "PyTorchJob llm is restarting because 1 Worker replica(s) failed."
    assert served.events() == [("PyTorchJobRestarting", said)]


def test_a_worker_that_may_not_restart_fails_the_object(served: ServedObjects) -> None:
    key = served.apply(pytorchjob(policy="Never"))
    served.look(key)
    supervisors = start(served)
    served.look(key)
    supervisors[1].failed(rank=1)
    end(served, supervisors, "failed")
    served.look(key)
    assert served.conditions(key) == ["Created", "-Running", "Failed"]
    assert served.replicas(key)["Worker"] == {"failed": 1}
    assert served.events()[0][0] == "PyTorchJobFailed"
    assert (
        "1 Worker replica(s) failed. rank 1: rank 1 was killed by SIGKILL" in served.events()[0][1]
    )


def test_the_deadline_cancels_and_the_time_to_live_deletes(served: ServedObjects) -> None:
    key = served.apply(pytorchjob(activeDeadlineSeconds=60, ttlSecondsAfterFinished=30))
    assert served.look(key) == 60.0
    served.rig.clock.advance(60)
    assert served.look(key) == 31.0
    assert served.rig.job(1).state == "cancelled"
    assert served.conditions(key) == ["Created", "Failed"]
    assert "active longer than specified deadline" in served.events()[0][1]
    served.rig.clock.advance(31)
    served.look(key)
    assert served.cluster.read(key) is None
    assert served.events()[-1] == ("SuccessfulDeletePod", "Deleted job: llm")


def test_what_cannot_be_a_job_fails_with_the_key_and_the_reason(served: ServedObjects) -> None:
    one = pytorchjob()
    one["spec"]["nprocPerNode"] = "cpu"
    key = served.apply(one)
    served.look(key)
    assert served.conditions(key) == ["Created", "Failed"]
    condition = served.object(key)["status"]["conditions"][-1]
    assert condition["reason"] == "PyTorchJobFailedValidation"
    assert "nprocPerNode: a process for each CPU is not supported" in condition["message"]
    assert served.rig.client.jobs().jobs == []
    served.look(key)
    assert [reason for reason, _ in served.events()] == ["PyTorchJobFailedValidation"]


def test_shell_variables_and_braces_of_a_command_are_no_placeholders(served: ServedObjects) -> None:
    one = pytorchjob()
    for role in one["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", "echo $HOME {{ x }}"]
    served.look(served.apply(one))
    assert served.rig.job(1).spec["run"] == ["sh", "-c", "echo $HOME {{ x }}"]


def test_a_change_of_the_spec_is_told_once_and_has_no_effect(served: ServedObjects) -> None:
    key = served.apply(pytorchjob())
    served.look(key)
    changed = served.object(key)
    changed["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    served.apply(changed)
    served.look(key)
    served.look(key)
    assert served.rig.job(1).num_nodes == 2
    assert [reason for reason, _ in served.events()] == ["PyTorchJobChangeRefused"]


def elastic(served: ServedObjects, **limits: int) -> tuple[ObjectKey, Object]:
    """An elastic object whose job was submitted."""
    one = pytorchjob("elastic", workers=1)
    one["spec"]["elasticPolicy"] = limits
    key = served.apply(one)
    served.look(key)
    return key, served.object(key)


def nodes_of(served: ServedObjects) -> Any:
    return served.rig.job(1).spec["resources"]["nodes"]


def test_limits_of_an_elastic_object_are_those_of_its_job(served: ServedObjects) -> None:
    key, one = elastic(served, minReplicas=1, maxReplicas=3)
    assert nodes_of(served) == "2..4"
    # Replicas of an elastic job move between its limits.
    one["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    served.apply(one)
    served.look(key)
    assert nodes_of(served) == "2..4"
    start(served)
    one["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 2}
    served.apply(one)
    served.look(key)
    assert (nodes_of(served), served.rig.job(1).num_nodes) == ("2..3", 3)
    one["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 1}
    served.apply(one)
    served.look(key)
    assert nodes_of(served) == 2
    assert served.rig.job(1).state == "running"
    served.look(key)
    assert served.events() == []
    changes = [one for one in served.rig.client.history(1) if one.kind == "settings_changed"]
    assert len(changes) == 2


def test_an_update_of_the_operator_tells_no_change_of_an_object_that_has_none(
    served: ServedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier operators took the whole spec for what must not change, with a digest of another form."""
    monkeypatch.setattr(PyTorchJobKind, "spec_digest", lambda kind, one: "0123456789abcdef")
    key, one = elastic(served, minReplicas=1, maxReplicas=3)
    start(served)
    monkeypatch.undo()
    served.reborn()
    served.look(key)
    one["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 2}
    served.apply(one)
    served.look(key)
    assert nodes_of(served) == "2..3"
    assert served.events() == []


def test_replicas_are_the_size_of_an_elastic_object_without_limits(
    rig: Rig, tmp_path: Path
) -> None:
    with serving(rig, tmp_path, nodes=3) as served:
        key, one = elastic(served, maxRestarts=3)
        assert nodes_of(served) == 2
        one["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
        served.apply(one)
        served.look(key)
        assert nodes_of(served) == 3


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"minReplicas": 3, "maxReplicas": 2}, "the upper end of the range is below its lower end"),
        ({"minReplicas": 50, "maxReplicas": 60}, "nodes"),
    ],
)
def test_limits_that_no_job_can_have_are_told_once_and_stop_nothing_else(
    served: ServedObjects, limits: dict[str, int], said: str
) -> None:
    key, one = elastic(served, minReplicas=1, maxReplicas=3)
    one["spec"]["runPolicy"] = {"suspend": True}
    served.apply(one)
    served.look(key)
    assert served.rig.job(1).state == "paused"
    one = served.object(key)
    one["spec"] |= {"elasticPolicy": limits, "runPolicy": {"suspend": False}}
    served.apply(one)
    served.look(key)
    served.look(key)
    assert served.rig.job(1).state == "queued"
    assert nodes_of(served) == "2..4"
    (told,) = [text for reason, text in served.events() if reason == "PyTorchJobChangeRefused"]
    assert told.startswith("the number of nodes stays: ")
    assert said in told


def test_the_state_that_kubectl_shows_is_true_in_each_state(served: ServedObjects) -> None:
    key = served.apply(pytorchjob(suspend=True, backoffLimit=3))
    served.look(key)
    assert served.state_column(key) == "Suspended"
    served.change(key, suspend=False)
    served.look(key)
    assert served.state_column(key) == "Created"
    supervisors = start(served)
    served.look(key)
    assert served.state_column(key) == "Running"
    # Paused in Phalanx.
    served.rig.client.stop(1, goal="pause")
    end(served, supervisors, "stopped")
    served.look(key)
    assert served.state_column(key) == "Created"
    served.rig.client.resume(1)
    supervisors = start(served, attempt=2)
    served.look(key)
    assert served.state_column(key) == "Running"
    supervisors[1].failed(rank=1)
    served.look(key)
    assert served.state_column(key) == "Restarting"
    for one in supervisors:
        one.ended(0, "failed", step=1)
    for one in supervisors:
        one.started(1, pids=(8,))
    served.look(key)
    for one in supervisors:
        one.ended(1, "succeeded", step=3)
    for one in supervisors:
        one.leave()
    served.rig.turn()
    served.look(key)
    assert served.state_column(key) == "Succeeded"


def test_only_namespaces_with_the_label_and_objects_without_a_manager_are_served(
    served: ServedObjects,
) -> None:
    elsewhere = pytorchjob()
    elsewhere["metadata"]["namespace"] = "other"
    served.look(served.apply(elsewhere))
    served.look(served.apply(pytorchjob(managedBy="kueue.x-k8s.io/multikueue")))
    assert served.rig.client.jobs().jobs == []


def test_a_job_of_another_owner_is_no_job_of_the_object(served: ServedObjects) -> None:
    key = served.apply(pytorchjob())
    uid = served.object(key)["metadata"]["uid"]
    labels = {"kubernetes-cluster": served.cluster.identity(), "kubernetes-uid": uid}
    served.rig.submit(labels=labels)
    served.look(key)
    assert sorted(one.num for one in served.rig.client.jobs().jobs) == [1, 2]
    assert served.rig.job(2).labels["kubernetes-name"] == "llm"


def test_a_missing_right_is_told_at_the_object_and_tried_again(served: ServedObjects) -> None:
    key = served.apply(pytorchjob())

    def denied(*args: object) -> None:
        raise PermissionDenied("service:operator may not submit in project vision")

    served.reconciler.jobs.submit = denied  # type: ignore[method-assign, assignment]
    for _ in range(2):
        with pytest.raises(PermissionDenied):
            served.look(key)
    said = "service:operator may not submit in project vision"
    assert served.events() == [("PyTorchJobSubmissionFailed", said)]


def test_pods_that_wait_say_why_once(served: ServedObjects) -> None:
    key = served.apply(pytorchjob())
    served.look(key)
    uid = served.object(key)["metadata"]["uid"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    late = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    late |= {"reason": "ReadinessGatesNotReady", "message": "a gate is closed"}
    broken = {"reason": "ErrImagePull", "message": "team/llm:3: not found"}
    ended = {"reason": "Error", "exitCode": 3, "message": "a record"}
    statuses: list[Object] = [
        {"phase": "Pending", "conditions": [late, scheduled]},
        {
            "phase": "Pending",
            "containerStatuses": [{"name": "ranks", "state": {"waiting": broken}}],
        },
        {"phase": "Failed", "containerStatuses": [{"name": "ranks", "state": {"waiting": broken}}]},
        {
            "phase": "Running",
            "containerStatuses": [
                {"name": "ranks", "state": {"running": {}}},
                {"name": "proxy", "state": {"terminated": ended}},
            ],
        },
    ]
    for rank, found in enumerate(statuses):
        meta = {"name": f"phx-a1-j1-a1-n{rank}", "labels": {UID_LABEL: uid}}
        served.api.store.create("pods", "team", {"metadata": meta, "spec": {}, "status": found})
    served.look(key)
    # Its next message differs, and is the same word.
    path = "/api/v1/namespaces/team/pods/phx-a1-j1-a1-n1/status"
    broken["message"] = "team/llm:3: not found, again"
    body = {"status": {"containerStatuses": [{"name": "ranks", "state": {"waiting": broken}}]}}
    served.client.call("PATCH", path, body, kind="application/merge-patch+json")
    served.look(key)
    told = [one for one in served.events() if one[0] != "SuccessfulCreatePod"]
    pod = "Error pod phx-a1-j1-a1"
    assert told == [
        ("ReadinessGatesNotReady", f"{pod}-n0 condition message: a gate is closed"),
        ("ErrImagePull", f"{pod}-n1 container ranks waiting message: team/llm:3: not found"),
        ("Error", f"{pod}-n3 container proxy exitCode: 3 terminated message: a record"),
    ]


@pytest.mark.parametrize("looks", [2, 0])
def test_pods_get_the_labels_of_their_roles_and_their_ends_are_told(
    served: ServedObjects, looks: int
) -> None:
    """Also of a pod that ends and is deleted between two looks at its object."""
    key = served.apply(pytorchjob())
    served.look(key)
    uid = served.object(key)["metadata"]["uid"]
    for rank in (0, 1):
        meta = {"name": f"phx-a1-j1-a1-n{rank}", "labels": {UID_LABEL: uid}}
        served.api.store.create("pods", "team", {"metadata": meta, "spec": {}})
    served.look(key)
    pods = served.api.store.objects
    labels = [
        pods["pods", "team", f"phx-a1-j1-a1-n{rank}"]["metadata"]["labels"] for rank in (0, 1)
    ]
    prefix = "training.kubeflow.org"
    assert labels[0][f"{prefix}/replica-type"] == "master"
    assert labels[0][f"{prefix}/job-role"] == "master"
    assert labels[1][f"{prefix}/replica-type"] == "worker"
    assert labels[1][f"{prefix}/replica-index"] == "0"
    assert f"{prefix}/job-role" not in labels[1]
    served.look(key)
    ended = {"name": "ranks", "state": {"terminated": {"exitCode": 3}}}
    path = "/api/v1/namespaces/team/pods/phx-a1-j1-a1-n1"
    body = {"status": {"containerStatuses": [ended]}}
    served.client.call("PATCH", f"{path}/status", body, kind="application/merge-patch+json")
    for _ in range(looks):
        served.look(key)
    served.client.call("DELETE", path, {})
    served.look(key)
    assert served.events() == [
        ("SuccessfulCreatePod", "Created pod: phx-a1-j1-a1-n0"),
        ("SuccessfulCreatePod", "Created pod: phx-a1-j1-a1-n1"),
        ("ExitedWithCode", "Pod: team.phx-a1-j1-a1-n1 exited with code 3"),
        ("SuccessfulDeletePod", "Deleted pod: phx-a1-j1-a1-n1"),
    ]
