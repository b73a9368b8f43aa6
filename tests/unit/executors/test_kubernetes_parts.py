"""Parts of the Kubernetes executor that need no cluster."""

import json
import socket
import ssl
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
import yaml

from phalanx.core.contract.pods import (
    CONTAINERS_LABEL,
    PodContract,
    SideContainer,
    TaintToleration,
    VolumeMount,
)
from phalanx.core.reasons import Cause
from phalanx.errors import ExecutorUnavailable, ServerError, SpecInvalid
from phalanx.executors.kubernetes import deaths
from phalanx.executors.kubernetes.client import SILENT_S, KubernetesClient, TokenBucket
from phalanx.executors.kubernetes.credentials import ClusterAccess, from_kubeconfig, in_cluster
from phalanx.executors.kubernetes.inventory import OWNER_LABEL, nodes_of
from phalanx.executors.kubernetes.manifests import (
    AttemptNames,
    PodPlace,
    bootstrap_secret,
    pod_object,
)
from phalanx.executors.kubernetes.pod import MAX_MESSAGE_BYTES, bootstrap, trimmed
from phalanx.executors.kubernetes.policies.admission import (
    claim_problem,
    node_problems,
    pool_problems,
)
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


def test_a_cordoned_node_is_left_before_its_drain_unless_the_pool_says_otherwise():
    cordoned = node(unschedulable=True)
    assert nodes_of(pool(), [cordoned], [], "me")[0].leaves_at is not None
    assert nodes_of(pool(cordon="stay"), [cordoned], [], "me")[0].leaves_at is None
    assert nodes_of(pool(), [node()], [], "me")[0].leaves_at is None


def test_instances_of_a_partitioned_gpu_have_their_profile_and_memory():
    capacity = {"cpu": "8", "memory": "16Gi", "nvidia.com/mig-1g.5gb": "7"}
    labels = {"nvidia.com/gpu.product": "A100", "nvidia.com/mig-1g.5gb.memory": "4864"}
    told = pool(slot="nvidia.com/mig-1g.5gb")
    (found,) = nodes_of(told, [node(capacity=capacity, labels=labels)], [], "me")
    assert (found.num_slots, found.slot_type) == (7, "A100-MIG-1g.5gb")
    assert found.device_memory_bytes == 4864 << 20


def test_what_others_request_counts_as_the_scheduler_counts_it():
    one = pod()
    one["spec"] |= {
        "overhead": {"cpu": "500m"},
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "3", "nvidia.com/gpu": "2"}}},
        ],
    }
    # Beside the sidecar the init container needs 4, the ranks' container 2.5; the overhead comes on top.
    assert requested(one)["cpu"] == Decimal("4.5")
    assert requested(one)["nvidia.com/gpu"] == 2
    assert nodes_of(pool(), [node()], [one], "me")[0].num_slots == 2


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


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("ghcr.io/acme/train@sha256:ab", "ghcr.io/acme/train@sha256:ab"),
        ("docker-pullable://acme/train@sha256:ab", "acme/train@sha256:ab"),
        ("sha256:ab", "sha256:ab"),
        ("", ""),
        ("x" * 900, "x" * 512),
    ],
)
def test_the_image_of_the_ranks_is_the_one_that_its_node_resolved(said, found):
    one = pod(state={"running": {}})
    beside = {"name": "metrics", "imageID": "exporter@sha256:cd"}
    one["status"]["containerStatuses"] = [beside, {"name": "ranks", "imageID": said}]
    assert deaths.image_of(one) == found
    assert deaths.image_of(pod()) == ""


def test_a_sidecar_that_runs_is_no_end_and_a_failed_init_container_is_one():
    ended = {"terminated": {"exitCode": 0}}
    one = pod(state=ended)
    one["status"]["initContainerStatuses"] = [{"name": "m", "state": {"running": {}}}]
    assert not deaths.verdict(one, node(), "b1", pool(), 0.0).dead
    one["status"]["initContainerStatuses"] = [{"name": "m", "state": ended}]
    assert deaths.verdict(one, node(), "b1", pool(), 0.0).dead
    waiting = pod(state={"waiting": {"reason": "PodInitializing"}}, phase="Failed")
    assert not deaths.verdict(waiting, node(), "b1", pool(), 0.0).dead
    failed = {"name": "unpack", "state": {"terminated": {"exitCode": 3}}}
    waiting["status"]["initContainerStatuses"] = [failed]
    found = deaths.verdict(waiting, node(), "b1", pool(), 0.0)
    assert found.dead and found.fault is deaths.PodFault.CONTAINER
    assert found.message.startswith(
        "container unpack, which runs before the ranks, ended with code 3"
    )


def test_the_image_of_a_container_before_the_ranks_may_be_missing_too():
    one = pod(state={"waiting": {"reason": "PodInitializing"}}, phase="Pending")
    wait = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    one["status"]["initContainerStatuses"] = [{"name": "m", "state": wait}]
    assert deaths.trouble(one)[0] is deaths.PodFault.IMAGE
    assert deaths.is_final(one, 0.0, pool())


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


WISH = PodContract(
    image="team/train:7",
    mounts=(VolumeMount("pvc", "data", "/d", True), VolumeMount("emptydir", "1000", "/tmp/x")),
    service_account="trainer",
    node_selector={"example.com/rack": "a"},
    tolerations=(TaintToleration("gpu"), TaintToleration("x.y/z", "v", "NoSchedule")),
    labels={"team": "vision", OWNER_LABEL: "me"},
    annotations={"example.com/note": "x"},
    resources={"rdma/ib": 1},
    sidecars=(
        SideContainer(name="m", image="e:1", millicpus=500, memory_bytes=77, env={"A": "b"}),
    ),
    init=(SideContainer(name="i", image="t:1", command=("tar", "x")),),
    image_pull_secrets=("registry",),
    host_network=True,
    runtime_class="gvisor",
)


def made(told, wish, slot="nvidia.com/gpu", slots=2, **changes):
    names = AttemptNames.of(told, "o1", "tests", 1, 2)
    one = assignment().model_copy(update={"pod": wish, **changes})
    return pod_object(told, names, {OWNER_LABEL: "o1"}, "u", "d", one, PodPlace("n7", slot, slots))


def test_what_a_job_asks_for_is_in_its_pods():
    told = pool(mounts=["pvc:shared:/ckpt"], image_pull_secrets=["other"], ipc_lock=True)
    role = gang_contract(1, num_nodes=2, grace_s=20.0).role
    gang = replace(assignment().gang, role=replace(role, shm_per_node_bytes=500))
    body = made(told, WISH, gang=gang)
    spec = body["spec"]
    ranks = spec["containers"][0]
    assert ranks["image"] == "team/train:7"
    assert body["metadata"]["labels"]["team"] == "vision"
    assert body["metadata"]["labels"][OWNER_LABEL] == "o1"  # never the job's
    assert body["metadata"]["annotations"]["example.com/note"] == "x"
    assert spec["serviceAccountName"] == "trainer"
    assert spec["nodeSelector"] == {"example.com/rack": "a"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert spec["runtimeClassName"] == "gvisor"
    assert {"operator": "Exists", "key": "gpu"} in spec["tolerations"]
    named = {"operator": "Equal", "key": "x.y/z", "value": "v", "effect": "NoSchedule"}
    assert named in spec["tolerations"]
    limits = ranks["resources"]["limits"]
    assert limits == {"rdma/ib": "1", "nvidia.com/gpu": "2", "memory": "1500"}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "500"}}
    assert shm in spec["volumes"]
    places = [one["mountPath"] for one in ranks["volumeMounts"]]
    assert places == ["/var/run/phalanx", "/dev/shm", "/ckpt", "/d", "/tmp/x"]
    assert ranks["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    side, init = spec["initContainers"]
    assert (side["restartPolicy"], side["resources"]["limits"]) == ("Always", {"memory": "77"})
    assert init["command"] == ["tar", "x"]
    assert "restartPolicy" not in init
    # A container beside the ranks must not read the token of the supervisor.
    assert all(one["name"] != "bootstrap" for one in side["volumeMounts"])


def test_sidecars_take_their_cpus_from_what_the_job_does_not_ask_for():
    wish = PodContract(sidecars=(SideContainer(name="m", image="e:1", millicpus=1500),))

    def cpus(slot="nvidia.com/gpu", wanted=0):
        role = replace(assignment().gang.role, cpus_per_node=wanted)
        gang = replace(assignment().gang, role=role)
        body = made(pool(), wish, slot, 2, gang=gang)
        return body["spec"]["containers"][0]["resources"]["requests"]["cpu"]

    assert (cpus(), cpus("cpu"), cpus(wanted=3)) == ("1500m", "500m", "3")


def test_pods_of_a_pool_with_a_user_pass_the_restricted_profile():
    spec = made(pool(run_as_user=1000), None)["spec"]
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
    }


def test_a_pool_allows_host_paths_and_the_network_of_nodes_by_name_only():
    def said(told, path="/mnt/data/x"):
        wish = PodContract(mounts=(VolumeMount("hostpath", path, "/d"),), host_network=True)
        return [one.path for one in pool_problems(told, wish)]

    assert said(pool()) == ["kubernetes.host_network", "mounts[0].source"]
    open_to = pool(host_network=True, host_paths=["/mnt/data"])
    assert said(open_to) == []
    assert said(open_to, "/mnt/data2") == ["mounts[0].source"]
    assert said(open_to, "/mnt") == ["mounts[0].source"]


def test_resources_that_no_node_has_are_refused():
    rich = node("b", {"cpu": "8", "rdma/ib": "2"})
    wish = PodContract(resources={"rdma/ib": 3})
    assert "has 2" in str(node_problems(pool(), wish, [node(), rich])[0])
    assert node_problems(pool(), PodContract(resources={"rdma/ib": 2}), [node(), rich]) == []


@pytest.mark.parametrize(
    ("modes", "num_nodes", "read_only", "said"),
    [
        (["ReadWriteOnce"], 1, False, None),
        (["ReadWriteOncePod"], 1, False, None),
        (["ReadWriteOnce"], 2, False, "pods on 2 nodes need ReadWriteMany"),
        (["ReadWriteOnce"], 2, True, "need ReadOnlyMany or ReadWriteMany"),
        (["ReadOnlyMany"], 2, True, None),
        (["ReadOnlyMany"], 1, False, "write :ro"),
        (["ReadWriteOnce", "ReadWriteMany"], 9, False, None),
        (None, 1, False, "has no claim of this name"),
    ],
)
def test_access_modes_of_claims(modes, num_nodes, read_only, said):
    claim = None if modes is None else {"spec": {"accessModes": modes}}
    mount = VolumeMount("pvc", "data", "/d", read_only)
    found = claim_problem("mounts[0].source", mount, claim, "ns", num_nodes)
    assert (found is None) if said is None else said in str(found)


def test_nodes_have_labels_with_their_whole_names_and_say_that_they_run_containers():
    labels = dict(nodes_of(pool(), [node(labels={"example.com/rack": "a"})], [], "me")[0].labels)
    assert labels["rack"] == labels["example.com/rack"] == "a"
    assert CONTAINERS_LABEL in labels.items()


def test_each_pod_reads_its_own_assignment(tmp_path):
    import base64

    names = AttemptNames("ns", "a")
    gang = [assignment(0), assignment(1)]
    for name, text in bootstrap_secret(names, {}, "u", gang)["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    read = Assignment.model_validate(bootstrap(tmp_path, "1", "10.0.0.1"))
    assert read == gang[1].model_copy(update={"address": "10.0.0.1"})


def test_a_gang_beyond_the_size_of_a_secret_is_refused():
    env = {"TABLE": "x" * 900_000}
    with pytest.raises(ValueError, match="a Secret of Kubernetes holds 900000: shorten `env`"):
        bootstrap_secret(
            AttemptNames("ns", "a"), {}, "u", [assignment().model_copy(update={"env": env})]
        )


def test_time_without_a_look_or_without_the_api_is_no_silence_of_a_node():
    now, silent = [0.0], node()
    silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]

    def away():
        raise ExecutorUnavailable("away")

    seen = deaths.NodeSilence(lambda: now[0])
    for at in (0.0, 5.0, 3605.0):
        now[0] = at
        seen.look(lambda: [silent], set)
    assert seen.seconds("a") == 15.0
    now[0] = 3609.0
    with pytest.raises(ExecutorUnavailable):
        seen.look(away, set)
    now[0] = 3610.0
    seen.look(lambda: [silent], set)
    assert seen.seconds("a") == 15.0


def test_an_exit_record_fits_into_the_message():
    body = {"ended": {"failure": {"message": "m", "traceback": "x" * 9000}}, "results": []}
    short = trimmed(json.dumps(body).encode())
    assert len(short) <= MAX_MESSAGE_BYTES
    assert json.loads(short)["ended"]["failure"]["message"] == "m"


def test_a_stream_that_opens_while_its_client_is_closed_is_not_read():
    """Closing ends the streams that are open. One that opens at that moment would never end."""
    client = KubernetesClient(ClusterAccess("http://cluster.test", ssl.create_default_context()))

    def answer(request):
        client.close()
        return httpx.Response(200, text="")

    client._http = httpx.Client(
        base_url="http://cluster.test", transport=httpx.MockTransport(answer)
    )
    with (
        pytest.raises(ExecutorUnavailable, match="closed"),
        client.watch("/api/v1/pods", "1", {}, 240),
    ):
        pass


def test_the_kernel_notices_a_peer_that_is_gone_long_before_a_stream_counts_as_silent():
    """Bookmarks come about once a minute, and late under load: no stream ends for one that is late."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = KubernetesClient(ClusterAccess(url, ssl.create_default_context()))

        def answer():
            peer, _ = listening.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                peer.recv(1)  # until the client closes

        server = threading.Thread(target=answer)
        server.start()
        with client.watch("/api/v1/pods", "1", {}, 240):
            (stream,) = client._streams
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, between, probes = (
                stream.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
        client.close()
        server.join(10)
    assert SILENT_S > 2 * 60
    assert idle + between * probes <= 60


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


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("EvictionByEvictionAPI", Cause.NODE_DRAINED),
        ("DeletionByTaintManager", Cause.NODE_LOST),
        ("PreemptionByScheduler", Cause.PREEMPTED),
        ("TerminationByKubelet", Cause.NODE_LOST),
    ],
)
def test_disruptions_are_no_crash_of_a_rank(reason, cause):
    one = pod(state={"terminated": {"exitCode": 143}}, phase="Failed")
    target = {"type": "DisruptionTarget", "reason": reason, "message": "because"}
    one["status"]["conditions"] = [target]
    found = deaths.verdict(one, node(), "b1", pool(), 0.0)
    assert found.dead
    assert deaths.CAUSES[found.fault] is cause
    assert "because" in found.message


@pytest.mark.parametrize(
    ("reason", "fault", "final"),
    [
        ("ErrImagePull", deaths.PodFault.IMAGE, False),
        ("ImagePullBackOff", deaths.PodFault.IMAGE, False),
        ("RegistryUnavailable", deaths.PodFault.IMAGE, False),
        ("InvalidImageName", deaths.PodFault.IMAGE, True),
        ("SignatureValidationFailed", deaths.PodFault.IMAGE, True),
        ("CreateContainerConfigError", deaths.PodFault.CONTAINER, True),
        ("CreateContainerError", deaths.PodFault.CONTAINER, True),
    ],
)
def test_what_keeps_a_container_from_starting(reason, fault, final):
    one = pod(state={"waiting": {"reason": reason, "message": "try later"}}, phase="Pending")
    assert deaths.hopeless(one, 1.0, pool())[0] is (fault if final else None)
    assert deaths.hopeless(one, 901.0, pool())[0] is fault
    assert deaths.CAUSES[fault] is Cause.START_FAILED
    denied = pod(state={"waiting": {"reason": "ErrImagePull", "message": "pull access denied"}})
    assert deaths.hopeless(denied, 0.0, pool())[0] is deaths.PodFault.IMAGE


def test_ends_that_a_kubelet_reports_have_their_cause():
    def cause(reason, code=137):
        one = pod(state={"terminated": {"exitCode": code, "reason": reason}}, phase="Failed")
        return deaths.CAUSES[deaths.verdict(one, node(), "b1", pool(), 0.0).fault]

    assert cause("OOMKilled") is Cause.OOM
    assert cause("ContainerStatusUnknown") is Cause.NODE_LOST
    assert cause("StartError", 128) is Cause.START_FAILED
    evicted = pod(state={"terminated": {"exitCode": 1}}, phase="Failed")
    said = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
    evicted["status"] |= {"reason": "Evicted", "message": said}
    found = deaths.verdict(evicted, node(), "b1", pool(), 0.0)
    assert deaths.CAUSES[found.fault] is Cause.NODE_LOST
    assert "ephemeral local storage usage" in found.message


@pytest.mark.parametrize(
    "reason", ["OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "TopologyAffinityError"]
)
def test_a_pod_that_its_node_refuses_after_binding_is_a_failed_start(reason):
    one = pod(phase="Failed")
    one["status"] |= {"reason": reason, "message": "no devices"}
    one["status"]["containerStatuses"] = []
    found = deaths.verdict(one, node(), "b1", pool(), 0.0)
    assert found.dead
    assert deaths.CAUSES[found.fault] is Cause.START_FAILED
    orphan = pod(phase="Failed")  # as the garbage collector of pods leaves it
    orphan["status"] |= {"reason": "DeletionByPodGC", "containerStatuses": []}
    assert not deaths.verdict(orphan, node(), "b1", pool(), 0.0).dead


def test_a_pod_behind_a_gate_is_given_up_and_an_unbound_one_waits():
    gated = pod(node="", phase="Pending")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    entry = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    gated["status"]["conditions"] = [entry]
    fault, said = deaths.hopeless(gated, 0.0, pool())
    assert fault is deaths.PodFault.GATED
    assert "kueue.x-k8s.io/admission" in said
    unbound = pod(node="", phase="Pending")
    assert deaths.hopeless(unbound, 29.0, pool())[0] is None
    assert deaths.hopeless(unbound, 31.0, pool())[0] is deaths.PodFault.UNSCHEDULABLE


TREE_POOL = {"image": "team/train:1", "supervisor_image": "phalanx:0.1.0"}


def made_pod(one, image=None):
    wish = PodContract(image=image, init=(SideContainer(name="own", image="x"),))
    names = AttemptNames("ns", "anchor")
    told = assignment().model_copy(update={"pod": wish})
    return pod_object(one, names, {}, "u", "d", told, PodPlace("n", "cpu", 1))["spec"]


def test_the_supervisor_is_copied_into_images_without_phalanx():
    spec = made_pod(pool(**TREE_POOL))
    copy, own = spec["initContainers"]
    assert (copy["image"], own["image"]) == ("phalanx:0.1.0", "x")
    assert copy["command"][0] == "/opt/phalanx-tree/bin/loader"
    assert copy["command"][-1] == "/phalanx-tree"
    (ranks,) = spec["containers"]
    assert ranks["command"][0] == "/phalanx-tree/bin/loader"
    assert ranks["command"][-1] == "phalanx.executors.kubernetes.pod"
    mounts = {one["mountPath"]: one for one in ranks["volumeMounts"]}
    assert mounts["/phalanx-tree"] == {
        "name": "tree",
        "mountPath": "/phalanx-tree",
        "readOnly": True,
    }
    assert {"name": "tree", "emptyDir": {}} in spec["volumes"]
    assert "/phalanx-tree" not in [one["mountPath"] for one in own["volumeMounts"]]


@pytest.mark.parametrize("image", ["phalanx:0.1.0", "ours/a:3", "r:5000/x@sha256:[ab]"])
def test_images_with_phalanx_need_no_tree(image):
    patterns = ["ours/*", "r:5000/x@sha256:[ab]"]
    spec = made_pod(pool(**TREE_POOL, images_with_phalanx=patterns), image)
    assert [one["name"] for one in spec["initContainers"]] == ["own"]
    assert spec["containers"][0]["command"][0] == "python"
    assert pool(**TREE_POOL, images_with_phalanx=patterns).needs_tree("r:5000/x@sha256:a")
    assert not pool().needs_tree(image)


def test_patterns_of_images_need_the_image_with_the_tree():
    with pytest.raises(ValueError, match="has no meaning without `supervisor_image`"):
        pool(images_with_phalanx=["a"])
