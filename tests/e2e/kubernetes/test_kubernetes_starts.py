"""Starts that a cluster refuses or delays: each has its cause, keeps nothing, and blocks no other start."""

import threading

import pytest

from e2e.kubernetes.test_kubernetes_contract import KubernetesRig, alive, start_slice
from phalanx.core.contract.job import JobContract
from phalanx.core.gang.placement import NodeShare, Placement
from phalanx.core.reasons import Cause
from phalanx.errors import ExecutorUnavailable, LaunchError, ServerError
from phalanx.testing.executors import gang_contract, ref_of
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
NAMESPACE = "phalanx-tests"


@pytest.fixture
def rig(cluster, tmp_path):
    cluster.add_nodes(3)
    rig = KubernetesRig(cluster, tmp_path)
    yield rig
    rig.close()
    wait_until(lambda: cluster.left() == [], "an empty cluster")


def gang(rig, nodes, slots=1, **changes):
    changes = {"num_nodes": nodes, **changes}
    return [rig.assignment(1, node_rank=rank, **changes) for rank in range(nodes)]


def placement(rig, nodes, slots=1):
    shares = [
        NodeShare(one.id, "", tuple(range(slots))) for one in rig.executor.inventory()[:nodes]
    ]
    return Placement("kube", tuple(shares))


def reserve(rig, nodes, slots=1):
    rig.pool = rig.pool.model_copy(update={"checkpoints": "/shared"})
    rig.executor._pool = rig.executor._launcher._pool = rig.pool
    made = gang(rig, nodes)
    rig.executor.reserve(placement(rig, nodes, slots), made)
    return [ref_of(one) for one in made]


def ended(rig, ref):
    return wait_until(lambda: not (one := rig.executor.poll([ref])[0]).alive and one)


def test_a_missing_image_is_a_failed_start_at_once_and_leaves_nothing(rig):
    rig.cluster.kubelet.missing_images.add("phalanx:test")
    (ref,) = reserve(rig, 1)
    found = ended(rig, ref)
    assert found.cause is Cause.START_FAILED
    assert "cannot be pulled: ErrImagePull: phalanx:test: not found" in found.message
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


def test_an_image_without_phalanx_ends_with_its_last_output(rig, monkeypatch):
    monkeypatch.setattr(
        "phalanx.executors.kubernetes.containers._POD", ["-m", "phalanx_is_not_here"]
    )
    (ref,) = reserve(rig, 1)
    found = ended(rig, ref)
    assert found.cause is Cause.START_FAILED
    assert "ended with code 1" in found.message
    assert "No module named phalanx_is_not_here" in found.message


def test_a_quota_is_what_the_job_waits_for_and_no_part_of_its_gang_is_left(rig):
    rig.cluster.limit_quota(NAMESPACE, pods="2")
    refs = reserve(rig, 3)
    wait_until(lambda: not rig.executor._launcher.is_creating(refs[0]))
    causes = {one.cause for one in rig.executor.poll(refs) if not one.alive}
    assert Cause.CLUSTER_QUOTA in causes
    said = " ".join(one.message for one in rig.executor.poll(refs))
    assert "exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2" in said
    for ref in refs:
        rig.executor.stop(ref)
    wait_until(lambda: not any(one.alive for one in rig.executor.poll(refs)))
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


def test_a_quota_that_takes_no_pod_is_found_without_creating_one(rig):
    rig.cluster.limit_quota(NAMESPACE, requests_cpu="500m")
    with pytest.raises(LaunchError, match="exceeded quota: team") as caught:
        reserve(rig, 1)
    assert caught.value.cause == "cluster_quota"
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


def test_a_pod_security_profile_is_named_before_anything_is_created(rig):
    rig.cluster.restrict(NAMESPACE)
    with pytest.raises(LaunchError, match=r"Pod Security level of namespace.*runAsNonRoot != true"):
        reserve(rig, 1)
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_a_webhook_is_named_before_anything_is_created(rig):
    denied = 'admission webhook "images.example.com" denied the request: unsigned'
    rig.cluster.api.admission.webhook = denied
    with pytest.raises(LaunchError, match="refuses the pods: admission webhook"):
        reserve(rig, 1)
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


def refusals(rig, **role):
    contract = JobContract(roles=(gang_contract(1, **role).role,))
    return [(one.path, one.message) for one in rig.executor.refusals("kube", "tests", contract, 1)]


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_policies_are_told_at_submit_with_the_key_and_nothing_is_created(rig):
    admission = rig.cluster.api.admission
    assert refusals(rig) == []
    admission.restricted.add(NAMESPACE)
    ((at, said),) = refusals(rig, memory_per_node_bytes=1 << 19)
    assert at == "image"
    assert "Pod Security level restricted:latest of namespace phalanx-tests" in said
    admission.restricted.clear()
    admission.max_memory[NAMESPACE] = "1Gi"
    assert [path for path, _ in refusals(rig, memory_per_node_bytes=4 << 30)] == [
        "resources.memory"
    ]
    assert refusals(rig, memory_per_node_bytes=1 << 20) == []
    admission.quotas[NAMESPACE] = ("team", {"pods": "0"})  # the job waits for it
    assert refusals(rig, memory_per_node_bytes=2 << 20) == []
    assert rig.cluster.left() == []


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_an_answer_of_the_policies_is_asked_for_once_for_a_batch_of_jobs(rig):
    calls = rig.cluster.api.calls
    before = calls.count(("create", "pods"))
    for _ in range(20):
        assert refusals(rig, cpus_per_node=3) == []
    assert calls.count(("create", "pods")) == before + 1


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_a_cluster_that_is_away_refuses_no_job(rig):
    rig.cluster.api.admission.restricted.add(NAMESPACE)
    rig.cluster.api.away = True
    assert refusals(rig, cpus_per_node=4) == []
    rig.cluster.api.away = False


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_gpus_of_a_dra_driver_are_refused_with_its_name(rig):
    rig.executor.check_devices()
    device = {
        "metadata": {"name": "s0"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-0"},
    }
    rig.cluster.api.store.create("resourceslices", "", device)
    wait_until(lambda: "DRA driver" in rig.executor.inventory()[0].closed)
    with pytest.raises(
        ServerError, match=r"served by the DRA driver gpu\.nvidia\.com \(nodes node-0\)"
    ):
        rig.executor.check_devices()
    rig.cluster.api.store.delete("resourceslices", "", "s0", {})


def test_a_pod_that_is_not_bound_in_time_waits_for_slots_with_the_scheduler_s_words(rig):
    rig.pool = rig.pool.model_copy(update={"reserve_within": 0.1})
    (ref,) = reserve(rig, 1, slots=64)  # the cluster lost room after the plan
    found = ended(rig, ref)
    assert found.cause is Cause.UNSCHEDULABLE
    assert "0/3 nodes are available: Insufficient cpu." in found.message
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


def test_a_reservation_returns_while_its_pods_are_created_and_a_stop_ends_it(rig, monkeypatch):
    held, launcher = threading.Event(), rig.executor._launcher
    make = launcher._make

    def slow(names, plural, body, digest):
        if plural == "pods":
            assert held.wait(60)
        return make(names, plural, body, digest)

    monkeypatch.setattr(launcher, "_make", slow)
    refs = reserve(rig, 3)  # returns: another job may be started now
    assert all(one.alive for one in rig.executor.poll(refs))
    for ref in refs:
        rig.executor.stop(ref)
    assert all(alive(rig, ref) for ref in refs)  # a request may be on its way
    held.set()
    wait_until(lambda: not any(one.alive for one in rig.executor.poll(refs)))
    wait_until(lambda: rig.cluster.left() == [], "an empty cluster")


def test_a_tpu_slice_has_a_service_that_ends_with_its_attempt(rig):
    refs = start_slice(rig)
    wait_until(lambda: len(rig.cluster.kubelet.starts) == 2)
    assert rig.cluster.objects("services")
    for ref in refs:
        rig.executor.stop(ref)
    wait_until(lambda: not any(one.alive for one in rig.executor.poll(refs)))
    wait_until(lambda: not rig.cluster.objects("services"), "the end of the service")


def test_an_api_server_that_is_away_delays_the_pods_and_loses_none(rig, monkeypatch):
    launcher, away = rig.executor._launcher, [True]
    make = launcher._make

    def failing(names, plural, body, digest):
        if plural == "pods" and away[0]:
            raise ExecutorUnavailable("the API server is away")
        return make(names, plural, body, digest)

    monkeypatch.setattr(launcher, "_make", failing)
    monkeypatch.setattr("phalanx.executors.kubernetes.launching._FIRST_WAIT_S", 0.01)
    refs = reserve(rig, 3)
    assert all(one.alive for one in rig.executor.poll(refs))
    assert rig.cluster.kubelet.starts == {}
    away[0] = False
    wait_until(lambda: len(rig.cluster.kubelet.starts) == 3)
    assert all(one.alive for one in rig.executor.poll(refs))
    assert set(rig.cluster.kubelet.starts.values()) == {1}
