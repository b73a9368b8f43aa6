"""The Kubernetes executor keeps the contract of executors, on a fake and a real API with real processes."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.contract.job import WarmStart
from phalanx.core.gang.placement import NodeShare, Placement
from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.client import MERGE_PATCH
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.executor import KubernetesExecutor
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import NodeReadyReport
from phalanx.testing.control_plane import FakeControlPlane
from phalanx.testing.executors import ExecutorContract, gang_contract, ref_of
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


class KubernetesRig:
    def __init__(self, cluster, root):
        self.cluster = cluster
        self.home = HomeLayout(root / "home")
        self.home.root.mkdir(mode=0o700)
        self.pool = KubernetesPool.model_validate(
            {
                "name": "kube",
                "executor": "kubernetes",
                "kubeconfig": str(cluster.kubeconfig),
                "image": "phalanx:test",
                "reserve_within": "5s",
            }
        )
        self.plane = FakeControlPlane()
        self.refs = []
        self.executors = []
        self.executor = self.reborn()

    def assignment(self, job, **changes):
        fields = dict(changes)
        gang = gang_contract(job, num_nodes=fields.pop("num_nodes", 1), grace_s=5.0)
        rank = fields.pop("node_rank", 0)
        made = Assignment(
            gang=gang,
            node_rank=rank,
            node_dir=str(self.home.node_dir(job, 1, rank)),
            workdir="/",
            cwd="/",
            command=["python", "-c", "pass"],
            env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            cpus=1,
            server_url=self.plane.url,
            token=self.plane.token,
            warm=WarmStart(enabled=False),
            **fields,
        )
        self.refs.append(ref_of(made))
        return made

    def pod(self, ref):
        return wait_until(lambda: self.executor._notes.read(ref)).name

    def kill_supervisor(self, ref):
        wait_until(lambda: self.cluster.kubelet.starts.get(self.pod(ref)))
        self.cluster.kubelet.kill(self.pod(ref))

    def num_started(self, ref):
        wait_until(lambda: self.cluster.kubelet.starts.get(self.pod(ref)))
        return self.cluster.kubelet.starts[self.pod(ref)]

    def reborn(self):
        made = KubernetesExecutor(
            self.home, self.pool, from_kubeconfig(self.cluster.kubeconfig), owner="a1b2"
        )
        self.executors.append(made)
        assert made.wait_ready(20)
        wait_until(lambda: made.inventory())
        return made

    def close(self):
        for ref in self.refs:
            self.executor.stop(ref)
        wait_until(lambda: not any(one.alive for one in self.executor.poll(self.refs)))
        for one in self.executors:
            one.close()
        self.plane.away()


@pytest.fixture
def rig(cluster, tmp_path):
    cluster.add_nodes(2)
    rig = KubernetesRig(cluster, tmp_path)
    yield rig
    rig.close()
    wait_until(lambda: cluster.left() == [], "an empty cluster")


class TestKubernetesExecutor(ExecutorContract):
    pass


def start(rig, job):
    assignment = rig.assignment(job)
    rig.executor.start(rig.executor.inventory()[0], assignment)
    return ref_of(assignment)


def start_slice(rig):
    """Reserve a TPU slice of two hosts; returns its supervisors."""
    labels = {"cloud.google.com/gke-tpu-topology": "2x4", "cloud.google.com/gke-nodepool": "s"}
    for number in range(2):
        rig.cluster.kubelet.add_node(f"tpu-{number}", labels, **{"google.com/tpu": "4"})
    wait_until(lambda: {"kube-tpu-0", "kube-tpu-1"} <= {one.id for one in rig.executor.inventory()})
    rig.pool = rig.pool.model_copy(update={"checkpoints": "/shared"})
    rig.executor._pool = rig.executor._launcher._pool = rig.pool
    made = []
    for rank in range(2):
        one = rig.assignment(77, node_rank=rank, num_nodes=2)
        role = replace(one.gang.role, slots_per_node=4)
        made.append(one.model_copy(update={"gang": replace(one.gang, role=role)}))
    shares = tuple(NodeShare(f"kube-tpu-{number}", "", (0, 1, 2, 3)) for number in range(2))
    rig.executor.reserve(Placement("kube", shares), made)
    return [ref_of(one) for one in made]


def alive(rig, ref):
    return rig.executor.poll([ref])[0].alive


def test_the_exit_record_outlives_the_pod(rig):
    ref = start(rig, 1)
    rig.plane.wait_for(lambda: rig.plane.reports(NodeReadyReport))
    path = f"/api/v1/namespaces/phalanx-tests/pods/{rig.pod(ref)}"
    rig.cluster.kubelet.client.call(
        "DELETE", path
    )  # as kubectl does: the job's grace period applies
    wait_until(lambda: not alive(rig, ref))
    again = rig.reborn().poll([ref])[0]
    assert again.exit is not None
    assert again.exit.released
    assert again.message == "the pod was deleted"


def test_a_lost_node_is_no_death_and_its_restart_is(rig):
    ref = start(rig, 1)
    wait_until(lambda: rig.cluster.kubelet.starts)
    rig.cluster.kubelet.lose("node-0")
    wait_until(lambda: rig.executor.inventory()[0].closed)
    rig.executor.stop(ref)
    assert alive(rig, ref)
    rig.cluster.kubelet.bring_back("node-0", restarted=True)
    wait_until(lambda: not alive(rig, ref))


def test_a_forced_deletion_is_no_death(rig):
    ref = start(rig, 1)
    wait_until(lambda: alive(rig, ref) and rig.executor._notes.read(ref).boot_id)
    rig.cluster.kubelet.partition("node-0")
    client = rig.cluster.kubelet.client
    path = f"/api/v1/namespaces/phalanx-tests/pods/{rig.pod(ref)}"
    client.call("DELETE", path, {"gracePeriodSeconds": 0})
    client.call("PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE_PATCH)
    wait_until(lambda: "removed by force" in rig.executor.poll([ref])[0].message)
    assert alive(rig, ref)
    rig.cluster.kubelet.bring_back("node-0", restarted=True)
    wait_until(lambda: not alive(rig, ref))


def test_an_outage_of_the_api_concludes_nothing(rig):
    ref = start(rig, 1)
    rig.cluster.away()

    def unknown():
        try:
            rig.executor.poll([ref])
        except ExecutorUnavailable:
            return True
        return False

    wait_until(unknown)
    rig.cluster.back()
    wait_until(lambda: not unknown())
    assert alive(rig, ref)
    assert rig.num_started(ref) == 1


def test_the_end_of_a_pod_is_told_at_once(rig):
    told = []
    rig.executor.tell(told.append)
    ref = start(rig, 1)
    rig.plane.wait_for(lambda: rig.plane.reports(NodeReadyReport))
    told.clear()
    rig.kill_supervisor(ref)
    wait_until(lambda: told and not alive(rig, ref))
    assert set(told) == {"kube"}
