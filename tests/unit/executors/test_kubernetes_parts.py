"""Parts of the Kubernetes executor that need no cluster."""

import json
from pathlib import Path

import pytest
import yaml

from phalanx.errors import ServerError, SpecInvalid
from phalanx.executors.kubernetes import deaths
from phalanx.executors.kubernetes.client import TokenBucket
from phalanx.executors.kubernetes.credentials import from_kubeconfig, in_cluster
from phalanx.executors.kubernetes.inventory import OWNER_LABEL, nodes_of
from phalanx.executors.kubernetes.manifests import (
    AttemptNames,
    PodPlace,
    bootstrap_secret,
    pod_object,
)
from phalanx.executors.kubernetes.pod import MAX_MESSAGE_BYTES, bootstrap, trimmed
from phalanx.executors.kubernetes.quantities import requested
from phalanx.kit.units import parse_quantity
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.pool_file import EXECUTORS, read_pool_file, read_pools
from phalanx.schemas.wire.assignments import Assignment
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit
DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"


def pool(**fields):
    told = {"name": "k", "executor": "kubernetes", "image": "i:1", **fields}
    return KubernetesPool.model_validate(told)


def node(name="a", capacity=None, labels=None, taints=(), **spec):
    capacity = capacity or {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "4"}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"bootID": "b1"},
        },
    }


def pod(node="a", state=None, phase="Running", **meta):
    statuses = [] if state is None else [{"state": state}]
    requests = {"nvidia.com/gpu": "1", "cpu": "1500m"}
    return {
        "metadata": {"name": "p", **meta},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": requests}}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


def assignment(rank=0):
    return Assignment(
        gang=gang_contract(1, num_nodes=2, grace_s=20.0),
        node_rank=rank,
        node_dir=f"/n{rank}",
        workdir="/",
        cwd="/",
        command="true",
        env={},
        cpus=3,
        limit_memory_bytes=1000,
        server_url="http://x",
        token="secret-token",
    )


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("8Gi", 8 << 30), ("2", 2), ("1e3", 1000), ("3k", 3000)]
)
def test_quantities(text, value):
    assert parse_quantity(text) == value


def test_init_containers_count_where_they_need_more():
    one = pod()
    one["spec"]["initContainers"] = [{"resources": {"limits": {"cpu": "4"}}}]
    assert requested(one)["cpu"] == 4


def test_pods_of_others_are_subtracted_and_own_ones_are_not():
    others, ours = pod(), pod(labels={OWNER_LABEL: "me"})
    found = nodes_of(pool(), [node()], [others, ours, pod(phase="Succeeded")], "me")[0]
    assert (found.id, found.num_slots, found.num_cpus) == ("k-a", 3, 6)


def test_labels_give_type_memory_spot_and_topology():
    labels = {
        "nvidia.com/gpu.product": "H100",
        "nvidia.com/gpu.memory": "81920",
        "karpenter.sh/capacity-type": "spot",
        "topology.kubernetes.io/zone": "z1",
    }
    found = nodes_of(pool(), [node(labels=labels)], [], "me")[0]
    assert (found.slot_type, found.device_memory_bytes) == ("H100", 80 << 30)
    assert found.hazard_per_hour > 0
    assert found.domains == (("zone", "z1"),)


def test_cordoned_leaving_and_shared_nodes_are_closed():
    leaving = {"key": "ToBeDeletedByClusterAutoscaler", "value": "100", "effect": "NoSchedule"}
    shared = {"nvidia.com/gpu.replicas": "4"}
    nodes = [node(unschedulable=True), node("b", taints=[leaving]), node("c", labels=shared)]
    found = nodes_of(pool(), nodes, [], "me")
    assert [bool(one.closed) for one in found] == [True, True, True]
    assert found[1].leaves_at == 100_000_000
    assert not nodes_of(pool(time_slicing=True), nodes[2:], [], "me")[0].closed


def test_taints_keep_jobs_away_unless_the_pool_tolerates_them():
    tainted = node(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    assert nodes_of(pool(), [tainted], [], "me")[0].taints == ("gpu",)
    tolerant = pool(tolerations=[{"key": "gpu", "value": "yes"}])
    assert nodes_of(tolerant, [tainted], [], "me")[0].taints == ()


@pytest.mark.parametrize(
    ("what", "dead"),
    [
        ({"state": {"terminated": {"exitCode": 1}}}, True),
        ({"state": {"running": {}}, "phase": "Failed"}, False),
        ({"state": {"running": {}}, "deletionGracePeriodSeconds": 0}, False),
        ({"node": "", "deletionTimestamp": "now"}, True),
        ({"node": ""}, False),
    ],
)
def test_only_a_kubelet_proves_an_end(what, dead):
    assert deaths.verdict(pod(**what), node(), "b1", pool(), 0.0).dead is dead


def test_what_a_node_proves():
    off = {"key": "node.kubernetes.io/out-of-service"}
    assert deaths.node_ended(node(), "b0", pool(), 0)
    assert deaths.node_ended(node(taints=[off]), "b1", pool(), 0)
    assert not deaths.node_ended(None, "b1", pool(), 0)
    assert deaths.node_ended(None, "b1", pool(trust_node_deletion="cloud"), 0)
    assert not deaths.node_ended(node(), "b1", pool(), 599)
    assert deaths.node_ended(node(), "b1", pool(), 600)


def test_reasons_are_typed():
    oom = pod(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    assert deaths.why(oom)[0] is deaths.PodFault.OUT_OF_MEMORY
    drained = pod()
    reason = {"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI", "message": "x"}
    drained["status"]["conditions"] = [reason]
    assert deaths.why(drained)[0] is deaths.PodFault.DRAINED
    pull = pod(state={"waiting": {"reason": "ImagePullBackOff", "message": "timeout"}})
    assert deaths.trouble(pull)[0] is deaths.PodFault.IMAGE
    assert not deaths.is_final(pull, 10, pool())
    assert deaths.is_final(pull, 900, pool())


def test_a_pod_is_pinned_and_has_what_the_pool_says():
    told = pool(
        shm="1kB", mounts=["pvc:data:/d:ro"], service_account="sa", resources={"rdma/ib": 1}
    )
    names = AttemptNames.of(told, "o1", "tests", 1, 2)
    made = pod_object(told, names, {}, "u", "d", assignment(), PodPlace("n7", "nvidia.com/gpu", 2))
    spec = made["spec"]
    assert "n7" in json.dumps(spec["affinity"])
    assert spec["terminationGracePeriodSeconds"] == 35
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits == {"rdma/ib": "1", "nvidia.com/gpu": "2", "memory": "2000"}
    assert made["metadata"]["name"] == "phx-o1-j1-a2-n0"
    assert names.namespace == "phalanx-tests"
    assert "secret-token" not in json.dumps(made)


def test_each_pod_reads_its_own_assignment(tmp_path):
    import base64

    names = AttemptNames("ns", "a")
    gang = [assignment(0), assignment(1)]
    for name, text in bootstrap_secret(names, {}, "u", gang)["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    read = Assignment.model_validate(bootstrap(tmp_path, "1", "10.0.0.1"))
    assert read == gang[1].model_copy(update={"address": "10.0.0.1"})


def test_an_exit_record_fits_into_the_message():
    body = {"ended": {"failure": {"message": "m", "traceback": "x" * 9000}}, "results": []}
    short = trimmed(json.dumps(body).encode())
    assert len(short) <= MAX_MESSAGE_BYTES
    assert json.loads(short)["ended"]["failure"]["message"] == "m"


def test_requests_beyond_the_burst_wait():
    bucket = TokenBucket(rate=50, burst=2)
    now = bucket._at
    assert [bucket.delay_s(now) for _ in range(3)] == [0, 0, 1 / 50]


@pytest.mark.parametrize(
    ("user", "said"),
    [({"exec": {"command": "x"}}, "`exec` of user u"), ({"as": "root"}, "`as` of user u")],
)
def test_credentials_that_are_not_supported_are_refused(tmp_path, user, said):
    file = tmp_path / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://x"}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ServerError, match=said):
        from_kubeconfig(file)


def test_outside_a_cluster_a_kubeconfig_is_asked_for(tmp_path):
    with pytest.raises(ServerError, match="no pod"):
        in_cluster(tmp_path, {})


@pytest.mark.parametrize("mount", ["hostPath:/etc:/etc", "pvc:data", "nfs:server:/path", "pvc:a:b"])
def test_other_mounts_are_refused(mount):
    entry = {"name": "k", "executor": "kubernetes", "image": "i", "mounts": [mount]}
    with pytest.raises(SpecInvalid, match="mounts"):
        read_pools({"schema": 1, "pools": [entry]}, EXECUTORS)


def test_the_example_pool_and_the_least_rights():
    file, _ = read_pool_file(DEPLOY / "pool.yaml")
    assert file.clusters[0].executor == "kubernetes"
    documents = list(yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text()))
    role = next(one for one in documents if one["kind"] == "Role")
    rights = {(kind, verb) for r in role["rules"] for kind in r["resources"] for verb in r["verbs"]}
    assert ("secrets", "get") not in rights
    assert {("pods", "patch"), ("configmaps", "create"), ("secrets", "delete")} <= rights
