"""What a control plane that is gone for good has left in a cluster is listed and removed by another one."""

import pytest

from e2e.kubernetes.test_kubernetes_contract import KubernetesRig
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.executor import KubernetesExecutor
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.home import HomeLayout
from phalanx.testing.executors import ref_of
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def gone(cluster, tmp_path):
    """A cluster with a pod of a control plane that ended without a word."""
    cluster.add_nodes(2)
    rig = KubernetesRig(cluster, tmp_path)
    assignment = rig.assignment(1)
    rig.executor.start(rig.executor.inventory()[0], assignment)
    wait_until(lambda: rig.executor._notes.read(ref_of(assignment)).uid)
    wait_until(lambda: cluster.kubelet.starts)
    rig.executor.close()
    yield rig
    rig.plane.away()


@pytest.fixture
def other(gone, cluster, tmp_path):
    home = HomeLayout(tmp_path / "other")
    home.root.mkdir(mode=0o700)
    made = KubernetesExecutor(home, gone.pool, from_kubeconfig(cluster.kubeconfig), owner="e5f6")
    assert made.wait_ready(20)
    yield RoutedExecutor({"kube": made})
    made.close()


def left(cluster):
    return wait_until(lambda: cluster.left() == [], "an empty cluster")


def test_another_control_plane_lists_and_removes_what_was_left(gone, other, cluster):
    (found,) = other.leftovers("kube")
    assert (found.owner, found.is_own, found.num_pods) == ("a1b2", False, 1)
    assert (found.jobs, found.namespaces) == (("j-1",), ("phalanx-tests",))
    assert other.forget("kube", "dead") == 0
    assert cluster.left() != []
    assert other.forget("kube", "a1b2") == 1
    left(cluster)
    assert other.leftovers("kube") == []


def test_pods_of_other_programs_and_of_another_pool_stay(gone, other, cluster, tmp_path):
    own = {"phalanx.dev/owner": "e5f6", "phalanx.dev/pool": "second"}
    pods = (("phalanx-tests", "p1", own), ("phalanx-tests", "p2", {}), ("kube-system", "p3", own))
    client, gate = cluster.kubelet.client, {"name": "tests.invalid/never"}
    for namespace, name, labels in pods:
        containers = [{"name": "main", "image": "other:1"}]
        spec = {"containers": containers, "schedulingGates": [gate]}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        client.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    assert [one.owner for one in other.leftovers("kube")] == ["a1b2"]
    assert other.forget("kube", "e5f6") == 0
    other.forget("kube", "a1b2")
    wait_until(lambda: sorted(key[2] for key in cluster.left()) == ["p1", "p2"])
    path = "/api/v1/namespaces/kube-system/pods/p3"
    assert client.get(path)
    client.call("DELETE", path)


def test_a_pool_that_is_no_cluster_has_nothing_to_forget():
    routed = RoutedExecutor({})
    assert (routed.leftovers("local"), routed.forget("local", "a")) == ([], 0)
