"""Keys of containers and volumes in a job spec: how they are read, refused and carried to the pods."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.core.codec import decode, encode
from phalanx.core.contract.job import JobContract
from phalanx.core.contract.pods import CONTAINERS_LABEL, PodContract, TaintToleration, VolumeMount
from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import load_spec, resolved, validate_spec
from phalanx.schemas.spec.support import check_supported

pytestmark = pytest.mark.unit
SPEC = """
schema: 1
run: python train.py
image: team/train:7
resources: {nodes: 2, cpus: 4, memory: 8GB, shm: 2GB}
placement: {tolerate: [gpu]}
mounts: ["pvc:data:/data:ro", "emptydir:10GB:/scratch", "nfs:files:/export/a:/nfs", "hostPath:/mnt/d:/d"]
kubernetes:
  service_account: trainer
  node_selector: {example.com/rack: a}
  tolerations: [{key: example.com/gpu, value: "yes"}]
  resources: {rdma/ib: 1, ephemeral-storage: 10Gi}
  sidecars: [{name: metrics, image: exporter:1, cpus: 500m, memory: 1GB, env: {PORT: 9100}}]
"""


def test_what_is_given_reaches_the_contract():
    spec = load_spec(SPEC)
    assert check_supported(spec) == []
    assert validate_spec(resolved(spec)) == spec
    contract = spec.to_contract()
    assert decode(JobContract, encode(contract)) == contract
    pod = contract.pod
    assert pod is not None
    assert (pod.image, pod.service_account) == ("team/train:7", "trainer")
    assert pod.mounts == (
        VolumeMount("pvc", "data", "/data", True),
        VolumeMount("emptydir", "10000000000", "/scratch"),
        VolumeMount("nfs", "files:/export/a", "/nfs"),
        VolumeMount("hostpath", "/mnt/d", "/d"),
    )
    assert pod.tolerations == (TaintToleration("gpu"), TaintToleration("example.com/gpu", "yes"))
    assert pod.resources == {"rdma/ib": 1, "ephemeral-storage": 10 * 2**30}
    assert (pod.sidecars[0].millicpus, pod.sidecars[0].memory_bytes) == (500, 10**9)
    assert contract.roles[0].shm_per_node_bytes == 2 * 10**9


def test_the_planner_counts_shared_memory_and_sidecars():
    spec = load_spec(SPEC)
    demand = spec.to_demand()
    assert demand.memory_per_node_bytes == (8 + 2 + 1) * 10**9
    assert spec.cpus_per_node == 5
    assert spec.to_contract().roles[0].cpus_per_node == 4  # of the ranks alone
    assert set(demand.selector) == {CONTAINERS_LABEL, ("example.com/rack", "a")}
    assert demand.tolerates == ("example.com/gpu", "gpu")


def test_a_job_without_such_keys_runs_anywhere():
    spec = load_spec("run: x")
    assert (spec.pod_keys, spec.to_contract().pod) == ([], None)
    assert spec.to_demand().selector == ()
    assert load_spec("{run: x, kubernetes: {}}").pod_keys == ["kubernetes"]


def test_taints_that_a_job_tolerates_reach_its_pods():
    pod = load_spec("{run: x, placement: {tolerate: gpu}}").to_contract().pod
    assert pod == PodContract(tolerations=(TaintToleration("gpu"),))


def test_each_role_has_its_own_shared_memory():
    spec = load_spec(
        "{run: x, roles: {actor: {nodes: 1, slots: 0, resources: {shm: 1GB, memory: 3GB}}}}"
    )
    assert check_supported(spec) == []
    assert spec.pod_keys == ["roles.actor.resources.shm"]
    assert [one.shm_per_node_bytes for one in spec.to_contract().roles] == [0, 10**9]
    assert spec.to_policy().roles[0].memory_per_node_bytes == 4 * 10**9


@pytest.mark.parametrize(
    ("keys", "path", "said"),
    [
        ({"mounts": ["s3://bucket:/data"]}, "mounts[0].source", "must be pvc:NAME"),
        ({"mounts": ["pvc:Data:/data"]}, "mounts[0].source", "needs the name of an object"),
        ({"mounts": ["pvc:data:/a/../b"]}, "mounts[0].path", "without `..`"),
        ({"mounts": ["hostpath:/a/../etc:/b"]}, "mounts[0].source", "without `..`"),
        ({"mounts": ["nfs:server:/data"]}, "mounts[0].source", "needs a server"),
        ({"mounts": ["emptydir:lots:/data"]}, "mounts[0].source", "size"),
        ({"mounts": ["pvc:data:/dev/shm"]}, "mounts[0].path", "resources.shm"),
        ({"mounts": ["pvc:data:/var/run/phalanx/x"]}, "mounts[0].path", "of the container itself"),
        ({"mounts": ["pvc:data:/d"] * 33}, "mounts", "32"),
        ({"image": "team/train 7"}, "image", "must match"),
        ({"kubernetes": {"resources": {"nvidia.com/gpu": 1}}}, "resources", "slots_per_node"),
        ({"kubernetes": {"resources": {"rdma/ib": 0.5}}}, "rdma/ib", "whole amount"),
        ({"kubernetes": {"labels": {"phalanx.dev/job": "x"}}}, "labels", "set by the platform"),
        ({"kubernetes": {"annotations": {"linkerd.io/inject": "x"}}}, "annotations", "set by"),
        ({"kubernetes": {"labels": {"team": "a b"}}}, "labels.team", "at most 63 letters"),
        ({"kubernetes": {"tolerations": [{"value": "x"}]}}, "key", "is required"),
        (
            {"kubernetes": {"sidecars": [{"name": "ranks", "image": "a"}]}},
            "sidecars[0].name",
            "container of the ranks",
        ),
        (
            {"kubernetes": {"init": [{"name": "a", "image": "b"}] * 2}},
            "kubernetes",
            "two containers have the name a",
        ),
        (
            {"kubernetes": {"sidecars": [{"name": "a", "image": "b", "cpus": 0}]}},
            "cpus",
            "from 0.001",
        ),
    ],
)
def test_bad_values_are_refused_with_what_would_be_right(
    keys: dict[str, Any], path: str, said: str
):
    with pytest.raises(SpecInvalid) as caught:
        validate_spec({"run": "x", **keys})
    text = " ".join(str(one) for one in caught.value.problems)
    assert path in text
    assert said in text


def test_what_does_not_go_together_is_refused():
    twice = load_spec("{run: x, mounts: ['pvc:a:/d', 'pvc:b:/d/']}")
    assert "two volumes have this path" in str(check_supported(twice)[0])
    below = load_spec("{run: x, mounts: ['configmap:a:/d', 'pvc:b:/d/e']}")
    assert "mounted below it" in str(check_supported(below)[0])
    side = {"name": "a", "image": "b", "env": {"API_TOKEN": "x", "LEVEL": "1"}}
    secret = validate_spec({"run": "x", "kubernetes": {"sidecars": [side]}})
    (found,) = check_supported(secret)
    assert found.path == "kubernetes.sidecars[0].env.API_TOKEN"


def test_a_role_has_an_image_and_volumes_beside_those_of_the_job():
    text = """
run: x
image: team/train:7
mounts: ["pvc:data:/data"]
roles:
  b: {image: "team/log:1", mounts: ["pvc:logs:/logs"], world: shared}
  c: {world: shared}
"""
    spec = load_spec(text)
    assert check_supported(spec) == []
    assert {"roles.b.image", "roles.b.mounts"} < set(spec.pod_keys)
    contract = spec.to_contract()
    assert decode(JobContract, encode(contract)) == contract
    first, second, third = contract.roles
    assert (first.pod, third.pod) == (None, None)
    assert second.pod is not None and contract.pod is not None
    assert (second.pod.image, contract.pod.image) == ("team/log:1", "team/train:7")
    assert [one.path for one in second.pod.mounts] == ["/data", "/logs"]
    assert contract.pods == (contract.pod, second.pod)
    twice = load_spec("{run: x, mounts: ['pvc:a:/a'], roles: {b: {mounts: ['pvc:c:/a']}}}")
    (problem,) = check_supported(twice)
    assert (problem.path, problem.value) == ("roles.b.mounts", "/a")
    alone = load_spec("{run: x, roles: {b: {image: 'a:1'}}}").to_contract()
    assert [one.image for one in alone.pods] == ["a:1"]
