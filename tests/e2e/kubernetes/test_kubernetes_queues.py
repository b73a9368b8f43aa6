"""Gangs in a queue of Kueue: admitted as a whole, rolled back with its words, preempted, and given back."""

import pytest

from e2e.kubernetes.test_kubernetes_contract import KubernetesRig
from e2e.kubernetes.test_kubernetes_starts import ended, reserve
from phalanx.core.reasons import Cause
from phalanx.executors.kubernetes.client import MERGE_PATCH
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
QUEUE = {"queue": "team", "admit_within": 600.0}


@pytest.fixture
def rig(cluster, tmp_path):
    cluster.add_nodes(3)
    cluster.start_kueue()
    rig = KubernetesRig(cluster, tmp_path)
    rig.pool = rig.pool.model_copy(update=QUEUE)
    yield rig
    rig.close()
    wait_until(lambda: cluster.left() == [], "an empty cluster")
    wait_until(lambda: workloads(cluster) == [], "no Workloads")


def workloads(cluster):
    return cluster.kubelet.client.list("/apis/kueue.x-k8s.io/v1beta2/workloads").items


def pods_of(cluster):
    return cluster.kubelet.client.list("/api/v1/namespaces/phalanx-tests/pods").items


def stop(rig, refs):
    for ref in refs:
        rig.executor.stop(ref)
    wait_until(lambda: not any(one.alive for one in rig.executor.poll(refs)))


def test_a_gang_waits_for_its_queue_and_starts_on_the_nodes_of_its_plan(rig):
    refs = reserve(rig, 3)
    said = "waits for the queue team of Kueue"
    wait_until(lambda: all(one.message == said for one in rig.executor.poll(refs)))
    assert rig.cluster.kubelet.starts == {}
    rig.cluster.kueue.quotas["team"] = 3
    wait_until(lambda: len(rig.cluster.kubelet.starts) == 3)
    pods = pods_of(rig.cluster)
    # One role in the eyes of Kueue, although each pod is for another node.
    assert len({one["metadata"]["annotations"]["kueue.x-k8s.io/role-hash"] for one in pods}) == 1
    assert sorted(one["spec"]["nodeName"] for one in pods) == ["node-0", "node-1", "node-2"]
    assert rig.cluster.kueue.num_admitted == 3
    stop(rig, refs)
    assert workloads(rig.cluster) == []
    wait_until(lambda: rig.cluster.kueue.num_admitted == 0, "its quota")


def test_a_gang_that_is_not_admitted_in_time_waits_for_quota_with_the_words_of_its_workload(rig):
    rig.cluster.kueue.quotas["team"] = 1
    rig.pool = rig.pool.model_copy(update={"admit_within": 0.1})
    refs = reserve(rig, 2)
    wait_until(lambda: workloads(rig.cluster) or not rig.executor.poll(refs)[0].alive)
    found = ended(rig, refs[0])
    assert found.cause is Cause.CLUSTER_QUOTA
    assert "waits for the queue team of Kueue: " in found.message
    stop(rig, refs)
    assert rig.cluster.kubelet.starts == {}


def test_a_group_that_kueue_deletes_is_preempted(rig):
    rig.cluster.kueue.quotas["team"] = 2
    refs = reserve(rig, 2)
    wait_until(lambda: len(rig.cluster.kubelet.starts) == 2)
    wait_until(lambda: rig.executor.poll(refs) and rig.executor._notes.read(refs[1]).boot_id)
    group = rig.executor._notes.read(refs[0]).anchor
    rig.cluster.kueue.evict(group, "Preempted to accommodate a workload")
    for ref in refs:
        found = ended(rig, ref)
        assert found.cause is Cause.PREEMPTED
        assert found.message.endswith("Preempted to accommodate a workload")


def test_a_pool_without_a_queue_does_not_wait_for_one_that_caught_its_pods(rig):
    rig.pool = rig.pool.model_copy(update={"queue": None})
    hold = rig.cluster.kueue.hold

    def caught(pod):
        pod["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": "default"}
        hold(pod)

    rig.cluster.kueue.hold = caught
    (ref,) = reserve(rig, 1)
    found = ended(rig, ref)
    assert found.cause is Cause.START_FAILED
    assert "another program manages it" in found.message
    # What Kueue put there is its own to remove.
    (pod,) = pods_of(rig.cluster)
    path = f"/api/v1/namespaces/phalanx-tests/pods/{pod['metadata']['name']}"
    kept = {"metadata": {"finalizers": None}}
    rig.cluster.kubelet.client.call("PATCH", path, kept, kind=MERGE_PATCH)
