"""JobSets and Jobs that name Phalanx as their manager, and those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig
from integration.served_objects import ServedObjects, end, serving, start
from phalanx.operator.kinds import UID_LABEL
from phalanx.operator.managed_jobs import MANAGER, JobSetKind

pytestmark = pytest.mark.integration


@pytest.fixture
def served(rig: Rig, tmp_path: Path) -> Iterator[ServedObjects]:
    with serving(rig, tmp_path) as one:
        yield one


def job(name: str = "train", manager: str = MANAGER, **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "team/llm:3", "command": ["torchrun", "train.py"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "managedBy": manager,
            "parallelism": 2,
            "completions": 2,
            "backoffLimit": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            **more,
        },
    }


def jobset(name: str = "train", **more: Any) -> dict[str, Any]:
    inner = {key: one for key, one in job()["spec"].items() if key != "managedBy"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "managedBy": MANAGER,
            "failurePolicy": {"maxRestarts": 2},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": inner}}],
            **more,
        },
    }


def status(served: ServedObjects, key: Any) -> dict[str, Any]:
    """The status, with conditions as their types and reasons."""
    found = dict(served.object(key)["status"])
    found["conditions"] = [
        ("" if one["status"] == "True" else "-") + f"{one['type']} {one['reason']}"
        for one in found["conditions"]
    ]
    return found


def test_a_job_of_the_batch_api_tells_its_life(served: ServedObjects) -> None:
    key = served.apply(job())
    served.look(key)
    view = served.rig.job(1)
    assert (view.name, view.project, view.num_nodes) == ("train", "vision", 2)
    assert view.spec["kubernetes"]["labels"]["job-name"] == "train"
    assert status(served, key)["conditions"] == []
    supervisors = start(served)
    served.look(key)
    found = status(served, key)
    assert (found["active"], found["ready"]) == (2, 2)
    assert "completionTime" not in found
    end(served, supervisors)
    served.look(key)
    found = status(served, key)
    assert found["conditions"] == [
        "SuccessCriteriaMet CompletionsReached",
        "Complete CompletionsReached",
    ]
    assert found["succeeded"] == 2
    assert "active" not in found
    assert found["completionTime"] >= found["startTime"]
    served.reborn()
    version = served.object(key)["metadata"]["resourceVersion"]
    served.look(key)
    assert served.object(key)["metadata"]["resourceVersion"] == version


def test_a_job_is_suspended_without_a_start_and_resumed_with_a_new_one(
    served: ServedObjects,
) -> None:
    key = served.apply(job())
    served.look(key)
    supervisors = start(served)
    served.look(key)
    one = served.object(key)
    first = one["status"]["startTime"]
    one["spec"]["suspend"] = True
    served.apply(one)
    served.look(key)
    end(served, supervisors, "stopped")
    served.rig.clock.advance(10)
    served.look(key)
    assert status(served, key) == {"conditions": ["Suspended JobSuspended"]}
    one = served.object(key)
    one["spec"]["suspend"] = False
    served.apply(one)
    served.look(key)
    found = status(served, key)
    assert found["conditions"] == ["-Suspended JobResumed"]
    assert found["startTime"] > first
    assert served.rig.job(1).state == "queued"
    assert len(served.rig.client.jobs().jobs) == 1


def test_the_parallelism_of_a_job_may_change(served: ServedObjects) -> None:
    key = served.apply(job())
    served.look(key)
    for pods in (1, 2):
        one = served.object(key)
        one["spec"] |= {"parallelism": pods, "completions": pods}
        served.apply(one)
        served.look(key)
        assert served.rig.job(1).spec["resources"]["nodes"] == pods
    assert served.events() == []
    one = served.object(key)
    one["spec"] |= {"parallelism": 0, "completions": 4}  # no gang has such a size
    served.apply(one)
    served.look(key)
    assert served.rig.job(1).spec["resources"]["nodes"] == 2
    assert [reason for reason, _ in served.events()] == ["JobChangeRefused"]


def test_only_objects_of_this_manager_are_kept(served: ServedObjects) -> None:
    """A cluster may have very many Jobs; those of other managers take no memory."""
    served.apply(job("others", "example.com/manager"))
    own = served.apply(job())
    served.look(own)
    mirrors = served.cluster._objects.values()
    names = [one["metadata"]["name"] for mirror in mirrors for one in mirror.read()]
    assert names == ["train"]


def test_a_failed_job_announces_its_end_and_has_no_completion_time(served: ServedObjects) -> None:
    key = served.apply(job(activeDeadlineSeconds=30, ttlSecondsAfterFinished=0))
    served.look(key)
    served.rig.clock.advance(30)
    served.look(key)
    found = status(served, key)
    assert found["conditions"] == ["FailureTarget JobFailed", "Failed JobFailed"]
    assert "completionTime" not in found
    assert served.rig.job(1).state == "cancelled"
    served.rig.clock.advance(60)
    served.look(key)
    served.object(key)  # the cluster deletes it


def test_a_jobset_tells_its_life_and_is_deleted_when_its_time_is_over(
    served: ServedObjects,
) -> None:
    key = served.apply(jobset(ttlSecondsAfterFinished=20))
    served.look(key)
    assert served.rig.job(1).num_nodes == 2
    supervisors = start(served)
    served.look(key)
    (entry,) = status(served, key)["replicatedJobsStatus"]
    assert (entry["name"], entry["active"], entry["ready"]) == ("workers", 1, 1)
    supervisors[1].failed(rank=1)
    for one in supervisors:
        one.ended(0, "failed", step=1)
    for one in supervisors:
        one.started(1, pids=(8,))
    served.look(key)
    assert status(served, key)["restarts"] == 1
    for one in supervisors:
        one.ended(1, "succeeded", step=3)
    for one in supervisors:
        one.leave()
    served.rig.turn()
    served.look(key)
    found = status(served, key)
    assert found["conditions"] == ["Completed AllJobsCompleted"]
    assert found["terminalState"] == "Completed"
    assert found["replicatedJobsStatus"][0]["succeeded"] == 1
    served.reborn()
    served.look(key)
    served.rig.clock.advance(21)
    served.look(key)
    assert served.cluster.read(key) is None


def test_a_suspended_jobset_pauses_and_a_deleted_one_is_cancelled(served: ServedObjects) -> None:
    key = served.apply(jobset())
    served.look(key)
    one = served.object(key)
    one["spec"]["suspend"] = True
    served.apply(one)
    served.look(key)
    assert status(served, key)["conditions"] == ["Suspended SuspendedJobs"]
    assert served.rig.job(1).state == "paused"
    one = served.object(key)
    one["spec"]["suspend"] = False
    served.apply(one)
    served.look(key)
    assert status(served, key)["conditions"] == ["-Suspended ResumeJobs"]
    served.cluster.delete(key, one["metadata"]["uid"])
    served.look(key)
    assert served.rig.job(1).state == "cancelled"


def test_a_jobset_that_is_no_single_gang_fails_with_the_reason(served: ServedObjects) -> None:
    one = jobset()
    one["spec"]["replicatedJobs"] *= 2
    key = served.apply(one)
    served.look(key)
    assert status(served, key)["terminalState"] == "Failed"
    message = served.object(key)["status"]["conditions"][0]["message"]
    assert "spec.replicatedJobs[1].name: each replicated job needs a name of its own" in message


def test_each_replicated_job_of_a_world_has_an_entry_and_labels(served: ServedObjects) -> None:
    one = jobset()
    first = one["spec"]["replicatedJobs"][0]
    for number, entry in enumerate((first, dict(first, name="others"))):
        inner = dict(first["template"]["spec"], parallelism=1, completions=1)
        container = dict(inner["template"]["spec"]["containers"][0])
        container["command"] = ["torchrun", "--nnodes=2", f"--node_rank={number}", "train.py"]
        inner["template"] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        one["spec"]["replicatedJobs"][number:] = [dict(entry, template={"spec": inner})]
    key = served.apply(one)
    served.look(key)
    asked = JobSetKind().asked_for(served.object(key))
    assert asked.replicas == {"workers": 1, "others": 1}
    name = "jobset.sigs.k8s.io/replicatedjob-name"
    assert [JobSetKind().rank_labels(asked, rank)[name] for rank in (0, 1)] == ["workers", "others"]
    entries = status(served, key)["replicatedJobsStatus"]
    assert [(one["name"], one["active"]) for one in entries] == [("workers", 0), ("others", 0)]


@pytest.mark.parametrize("make", [job, jobset])
def test_objects_of_another_manager_and_of_other_namespaces_are_left_alone(
    served: ServedObjects, make: Any
) -> None:
    for manager in (None, "kubernetes.io/job-controller", "phalanx.dev/other"):
        one = make(f"a-{str(manager)[:3].lower()}{len(str(manager))}")
        if manager is None:
            del one["spec"]["managedBy"]
        else:
            one["spec"]["managedBy"] = manager
        served.look(served.apply(one))
    one = make()
    one["metadata"]["namespace"] = "other"
    served.look(served.apply(one))
    assert served.rig.client.jobs().jobs == []


def test_pods_have_the_labels_of_their_kind(served: ServedObjects) -> None:
    key = served.apply(job())
    served.look(key)
    meta = {"name": "phx-a1-j1-a1-n1", "labels": {UID_LABEL: served.object(key)["metadata"]["uid"]}}
    served.api.store.create("pods", "team", {"metadata": meta, "spec": {}})
    served.look(key)
    labels = served.api.store.objects["pods", "team", "phx-a1-j1-a1-n1"]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-completion-index"] == "1"
