"""The rights in the manifest are those that the executor uses, no more and no fewer."""

from pathlib import Path

import pytest
import yaml

from e2e.kubernetes.test_kubernetes_contract import KubernetesRig, start_slice
from phalanx.core.contract.job import JobContract
from phalanx.core.contract.pods import PodContract, VolumeMount
from phalanx.core.scaling.model import NodeWish, PoolDemand, WantedGang
from phalanx.executors.kubernetes import executor as executor_module
from phalanx.executors.kubernetes.client import KubernetesClient
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.executor import KubernetesExecutor
from phalanx.executors.kubernetes.notes import PodNotes
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.scaling import KubernetesScalingSection
from phalanx.testing.executors import ref_of
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
MANIFEST = Path(__file__).parents[3] / "deploy" / "kubernetes" / "base" / "rbac.yaml"
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def granted(kind):
    documents = yaml.safe_load_all(MANIFEST.read_text())
    rules = next(one["rules"] for one in documents if one["kind"] == kind)
    return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


@pytest.fixture
def used(monkeypatch):
    """What the executor asks for: by `Role` and `ClusterRole`, pairs of a resource and a verb."""
    found = {"Role": set(), "ClusterRole": set()}

    def note(path, verb):
        words = path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        if not words:
            return  # which kinds there are: everybody may ask
        role = "Role" if words[0] == "namespaces" else "ClusterRole"
        words = words[2:] if role == "Role" else words
        if verb == "GET":
            verb = "get" if len(words) > 1 else "list"
        found[role].add((words[0], verb))

    class Recording(KubernetesClient):
        def call(self, method, path, *args, **kwargs):
            note(path, VERBS.get(method, method))
            return super().call(method, path, *args, **kwargs)

        def watch(self, path, *args, **kwargs):
            note(path, "watch")
            return super().watch(path, *args, **kwargs)

    monkeypatch.setattr(executor_module, "KubernetesClient", Recording)
    return found


def ask_for_nodes(rig, access, cluster):
    """Request nodes in both ways, read what became of it, and withdraw the requests."""
    cluster.serve_provisioning_requests()
    gang = WantedGang(7, (NodeWish(1),), 1)
    for mechanism in ("placeholders", "provisioning_request"):
        section = {
            "max": 4,
            "node": {"slots": 1},
            "mechanism": mechanism,
            "namespace": "phalanx-tests",
        }
        scaling = KubernetesScalingSection.model_validate(section)
        pool = rig.pool.model_copy(update={"scaling": scaling, "slot": "cpu"})
        growing = KubernetesExecutor(rig.home, pool, access, owner="e5f6")
        assert growing.wait_ready(20)
        assert growing.request(pool.name, PoolDemand((gang,))) == {}
        growing.growth(pool.name, [7])
        growing.request(pool.name, PoolDemand())
        growing.close()


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_the_rights_are_those_that_are_used(used, cluster, tmp_path):
    cluster.add_nodes(2)
    rig = KubernetesRig(cluster, tmp_path)
    assignment = rig.assignment(1)
    node = rig.executor.inventory()[0]
    rig.executor.start(node, assignment)
    wait_until(lambda: rig.executor._notes.read(ref_of(assignment)).uid)
    # A launch whose note was lost in a crash reads what is there already.
    lost = HomeLayout(tmp_path / "lost")
    lost.root.mkdir(mode=0o700)
    access = from_kubeconfig(cluster.kubeconfig)
    other = KubernetesExecutor(lost, rig.pool, access, owner="a1b2")
    assert other.wait_ready(20)
    other.start(node, assignment)
    wait_until(lambda: PodNotes(lost).read(ref_of(assignment)).uid)
    other.close()
    only = rig.pool.model_copy(update={"namespace": "phalanx-tests", "dedicated": True})
    single = KubernetesExecutor(rig.home, only, access, owner="c3d4")
    assert single.wait_ready(20)
    wait_until(lambda: ("pods", "watch") in used["Role"], "a watch of one namespace")
    single.close()
    ask_for_nodes(rig, access, cluster)
    claim = PodContract(mounts=(VolumeMount("pvc", "data", "/data"),))
    asked = JobContract(roles=(assignment.gang.role,), pod=claim)
    assert "no claim" in str(rig.executor.refusals("kube", "tests", asked, 1)[0])
    # A queue is asked why it does not admit a gang, and loses its Workload with the gang.
    queued = rig.pool.model_copy(update={"queue": "team", "admit_within": 0.01})
    waiting, late = KubernetesExecutor(rig.home, queued, access, owner="e5f6"), rig.assignment(3)
    rig.refs.remove(ref_of(late))
    cluster.start_kueue()
    assert waiting.wait_ready(20)
    waiting.start(node, late)
    wait_until(lambda: not waiting.poll([ref_of(late)])[0].alive)
    waiting.close()
    slice_refs = start_slice(rig)
    for ref in slice_refs:
        rig.executor.stop(ref)
    rig.executor.stop(ref_of(assignment))
    rig.close()
    assert used == {role: granted(role) for role in used}
