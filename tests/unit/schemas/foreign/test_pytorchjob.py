"""PyTorchJob files as job specs: what each becomes, what is refused by line, and that no key is ignored."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.kubernetes.pytorchjob import TABLE
from phalanx.schemas.foreign.rules import Conversion, KeyAction
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.support import check_supported

pytestmark = pytest.mark.unit
# The schemas of the operators lie beside the checkouts of some machines.
_FOLDERS = [one / "shared" / "crds" for one in Path(__file__).parents]
SCHEMAS = next((one for one in _FOLDERS if one.is_dir()), Path("crds"))
SCHEMA = SCHEMAS / "training-operator-v1" / "kubeflow.org_pytorchjobs.yaml"
JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: llm, labels: {team: vision, app/part: x}}
spec:
  runPolicy: {backoffLimit: 2, activeDeadlineSeconds: 3600}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: pytorch
            image: team/llm:3
            command: ["torchrun", "--nproc_per_node=8", "--rdzv_backend=c10d", "train.py"]
            args: ["--lr", "0.1", "--out=$(OUT)"]
            env:
            - {name: OUT, value: /data/out}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
            - {name: MASTER_PORT, value: "1"}
            resources:
              limits: {nvidia.com/gpu: 8, cpu: 7500m, memory: 64Gi}
            volumeMounts:
            - {name: shm, mountPath: /dev/shm}
            - {name: data, mountPath: /data}
          nodeSelector: {nvidia.com/gpu.product: H100}
          volumes:
          - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
          - {name: data, persistentVolumeClaim: {claimName: corpus}}
"""


def converted(text: str, local: bool = False, **values: str) -> Conversion:
    found = convert(text, "job.yaml", values, local)
    assert found is not None
    return found


def refusals(text: str, **values: str) -> list[str]:
    return [str(one) for one in converted(text, **values).problems]


def test_every_part_of_a_job_becomes_a_key_of_the_spec() -> None:
    found = converted(JOB)
    assert not found.problems
    assert found.spec == {
        "schema": 1,
        "name": "llm",
        "labels": {"team": "vision"},
        "run": ["python", "-u", "train.py", "--lr", "0.1", "--out=/data/out"],
        "image": "team/llm:3",
        "resources": {
            "nodes": 2,
            "slots_per_node": 8,
            "slots_per_rank": 1,
            "accelerator": "H100",
            "cpus": 8,
            "memory": 64 * 2**30,
            "shm": 16 * 2**30,
        },
        "env": {"OUT": "/data/out"},
        "secrets": ["TOKEN"],
        "mounts": ["pvc:corpus:/data"],
        "recovery": {"rank_crash": {"count": 2}},
        "max_duration": "3600s",
    }
    spec = validate_spec(found.spec)
    assert validate_spec(resolved(spec)) == spec
    dropped = {one.line: one.text for one in found.warnings}
    assert dropped[20] == "Phalanx sets this variable for every rank"
    assert found.lines["image"] == 14


def test_local_leaves_out_the_image_and_puts_all_ranks_on_one_node() -> None:
    found = converted(JOB, local=True)
    assert not found.problems
    assert found.spec["resources"] == {"accelerators": 16, "slots_per_rank": 1}
    assert not {"image", "mounts", "secrets", "placement"} & set(found.spec)
    texts = [one.text for one in found.warnings]
    assert "left out by --local" in texts
    assert any("is not set" in text for text in texts)


def test_a_plain_command_is_one_rank_on_each_node_with_all_its_gpus() -> None:
    plain = JOB.replace('"torchrun", "--nproc_per_node=8", "--rdzv_backend=c10d"', '"python"')
    assert converted(plain).spec["resources"]["slots_per_rank"] == 8


def two_roles(worker: str) -> str:
    data = yaml.safe_load(JOB)
    replicas = data["spec"]["pytorchReplicaSpecs"]
    replicas["Master"] = {**yaml.safe_load(yaml.safe_dump(replicas["Worker"])), "replicas": 1}
    container = replicas["Worker"]["template"]["spec"]["containers"][0]
    container["args"] = worker.split()
    return yaml.safe_dump(data)


def test_equal_templates_of_master_and_worker_are_one_gang() -> None:
    found = converted(two_roles("--lr 0.1 --out=$(OUT)"))
    assert not found.problems
    assert found.spec["resources"]["nodes"] == 3


def test_unequal_templates_are_roles_of_one_world() -> None:
    found = converted(two_roles("--lr 0.2"))
    assert not found.problems
    master, worker = (found.spec["roles"][name] for name in ("master", "worker"))
    assert (master["resources"]["nodes"], worker["resources"]["nodes"]) == (1, 2)
    assert (master["run"][-2:], worker["run"][-1]) == (["0.1", "--out=/data/out"], "0.2")
    assert (found.spec["image"], found.spec["env"]) == ("team/llm:3", {"OUT": "/data/out"})
    assert "image" not in worker and worker["world"] == "shared"
    spec = validate_spec(found.spec)
    assert (check_supported(spec), spec.world_size) == ([], 24)


def test_what_one_world_cannot_have_twice_is_refused_with_what_may_differ() -> None:
    data = yaml.safe_load(two_roles("--lr 0.2"))
    pod = data["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["tolerations"] = [{"key": "spot"}]
    (said,) = refusals(yaml.safe_dump(data))
    assert "Worker.template: differs from the template of master in tolerate" in said
    assert said.startswith("job.yaml, line ")
    assert "may differ in command, env, image, mounts and resources" in said


def test_an_elastic_job_keeps_equal_nodes_with_the_larger_amounts() -> None:
    data = yaml.safe_load(two_roles("--lr 0.1 --out=$(OUT)"))
    data["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3}
    worker = data["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker["resources"]["limits"]["memory"] = "96Gi"
    found = converted(yaml.safe_dump(data))
    assert not found.problems and "roles" not in found.spec
    assert found.spec["resources"]["nodes"] == "2..4"
    assert found.spec["resources"]["memory"] == 96 * 2**30


@pytest.mark.parametrize(
    ("flags", "ranks"), [(("4", "2"), (4, 2)), (("2", "1"), (2, 1)), (("auto", "auto"), (8, 8))]
)
def test_a_launcher_of_each_template_counts_its_own_processes(
    flags: tuple[str, str], ranks: tuple[int, int]
) -> None:
    data = yaml.safe_load(two_roles("--lr 0.2"))
    for kind, count in zip(("Master", "Worker"), flags, strict=True):
        pod = data["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]
        pod["containers"][0]["command"][1] = f"--nproc_per_node={count}"
        pod["containers"][0]["command"].insert(1, "--nnodes=3")
    found = converted(yaml.safe_dump(data))
    spec = validate_spec(found.spec)
    assert tuple(one.shape.ranks_per_node for one in spec.plans) == ranks
    assert not any("the launcher says" in one.text for one in found.warnings)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "replicas: 2",
            "replicas: two",
            "line 8: spec.pytorchReplicaSpecs.Worker.replicas: must be a whole",
        ),
        ("replicas: 2", "replicas: 999999999999", "line 8: "),
        (
            "replicas: 2",
            "replicas: $NODES",
            "line 8: spec.pytorchReplicaSpecs.Worker.replicas: has no value for $NODES",
        ),
        (
            "replicas: 2",
            "replica: 2",
            "line 8: spec.pytorchReplicaSpecs.Worker.replica: unknown key; did you mean replicas?",
        ),
        (
            "team/llm:3",
            "${IMAGE}",
            "containers[0].image: has no value for $IMAGE",
        ),
        ("--out=$(OUT)", "--out=$OUT_DIR", "has no value for $OUT_DIR: no shell reads it"),
        ("nvidia.com/gpu: 8", "nvidia.com/gpu: 1e9999999999", "must be a quantity such as 8"),
        ("nvidia.com/gpu: 8", "nvidia.com/gpu: 100000", "must be a whole number of at most 4096"),
        ("nvidia.com/gpu: 8", "nvidia.com/gpu: 6", "8 processes on a node with 6 GPUs"),
        ("nvidia.com/gpu: 8", "rdma/ib: 0.5", "must be a whole amount"),
        ("memory: 64Gi", "memory: lots", "must be a quantity"),
        (
            "name: pytorch",
            "name: pytorch\n            lifecycle: {x: 1}",
            "lifecycle: pods of a job have no such setting",
        ),
        ("nvidia.com/gpu.product: H100", "example.com/rack: 7", "must be text"),
        (
            "OnFailure",
            "Sometimes",
            "must be Always, OnFailure, ExitCode or Never (got 'Sometimes')",
        ),
        (
            "runPolicy: {",
            "runPolicy: {suspend: true, ",
            "line 5: spec.runPolicy.suspend: a job cannot be submitted paused",
        ),
        (
            "runPolicy: {",
            "elasticPolicy: {minReplicas: 3, maxReplicas: 2}\n  runPolicy: {",
            "must be at least minReplicas",
        ),
        ("    Worker:", "    Chief:", "must be Master, Worker"),
        ("claimName: corpus", "claimName: [1]", "this volume is not supported"),
        (
            "            image",
            "            envFrom: [{secretRef: {name: x}}]\n            image",
            "line 14: spec",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    assert old in JOB
    found = refusals(JOB.replace(old, new, 1))
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nx: \t- a\n\t b", "line 3: not valid YAML"),
        ("apiVersion: a\nkind: [", "not valid YAML"),
        ("apiVersion: a\nkind: b\nkind: c", "line 3: the key 'kind' is given twice"),
        ("apiVersion: v1\nkind: Service", "line 1: no job: Service (v1); supported: PyTorchJob"),
        (f"{JOB}---\n{JOB}", f"line {JOB.count(chr(10)) + 2}: 2 jobs in one file"),
        ("apiVersion: a\nx: !!python/object:os.system {}", "line 2: the tag"),
        ("apiVersion: a\nx: " + "[" * 200, ""),
        (
            "apiVersion: a\nx: {{ REPLICAS }}",
            "line 2: the placeholder {{ REPLICAS }} has no value; add --set",
        ),
        (
            "apiVersion: &a [1,2,3]\n"
            + "".join(
                f"k{n}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
            ),
            "is too large",
        ),
        ("apiVersion: a\n" + "x" * 1_000_001, "is too long"),
    ],
)
def test_hostile_text_is_one_clear_message(text: str, said: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        convert(text, "job.yaml")
    assert said in str(refused.value)


def test_placeholders_are_filled_and_unknown_values_refused() -> None:
    text = JOB.replace("replicas: 2", "replicas: $NODES").replace("team/llm:3", "{{ .Image }}")
    found = converted(text, NODES="4", Image="a/b:1")
    assert (found.spec["resources"]["nodes"], found.spec["image"]) == (4, "a/b:1")
    with pytest.raises(SpecInvalid, match="--set OTHER: the file has no such placeholder"):
        convert(text, "job.yaml", {"NODES": "4", "Image": "x", "OTHER": "1"})


def test_objects_beside_the_job_are_listed() -> None:
    found = converted(f"{JOB}---\napiVersion: v1\nkind: Service\nmetadata: {{name: etcd}}\n")
    assert [one.line for one in found.warnings if "is no job" in one.text] == [JOB.count("\n") + 2]


def test_a_job_spec_is_no_foreign_file() -> None:
    assert convert("schema: 1\nrun: python train.py\n", "job.yaml") is None


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all keys of a schema; `*` for free names and entries."""
    found = [path] if path else []
    for key, inner in schema.get("properties", {}).items():
        found += leaves(inner, (*path, key))
    for many in ("items", "additionalProperties"):
        if isinstance(schema.get(many), dict):
            found += leaves(schema[many], (*path, "*"))
    return found


@pytest.mark.skipif(not SCHEMA.exists(), reason="the schema of the operator is not here")
def test_every_key_of_the_schema_has_a_treatment() -> None:
    schema = yaml.load(SCHEMA.read_text(), Loader=yaml.CSafeLoader)
    (version,) = schema["spec"]["versions"]
    paths = leaves(version["schema"]["openAPIV3Schema"])
    assert len(paths) > 500
    assert [".".join(path) for path in paths if not TABLE.covers(path)] == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("$X"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(data: Any) -> list[tuple[Any, Any]]:
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [pair for key in keys for pair in ((data, key), *places(data[key]))]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_file_crashes_the_conversion_and_no_key_is_ignored(data: st.DataObject) -> None:
    body = yaml.safe_load(JOB)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places(body["spec"])))
        holder[key] = data.draw(VALUES)
    local = data.draw(st.booleans())
    with contextlib.suppress(SpecInvalid):
        found = convert(yaml.safe_dump(body), "job.yaml", local=local)
        assert found is not None
        keys = {one.key for one in found.treatments}
        for name in body["spec"]:
            assert any(key.startswith(f"spec.{name}") for key in keys)
        refused = [one for one in found.treatments if one.action is KeyAction.REFUSED]
        assert bool(refused) <= bool(found.problems)
        if not found.problems:
            with contextlib.suppress(SpecInvalid):
                validate_spec(found.spec)


def test_keys_of_pods_become_the_section_kubernetes() -> None:
    data = yaml.safe_load(JOB)
    pod = data["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod |= {
        "serviceAccountName": "trainer",
        "nodeSelector": {"example.com/rack": "a", "disk": "ssd"},
        "tolerations": [{"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}],
        "imagePullSecrets": [{"name": "registry"}],
        "hostNetwork": True,
        "initContainers": [
            {"name": "unpack", "image": "tools:1", "command": ["tar", "x"]},
            {"name": "proxy", "image": "proxy:2", "restartPolicy": "Always"},
        ],
    }
    pod["containers"][0]["resources"]["limits"]["rdma/ib"] = 1
    limits = {"cpu": "500m", "memory": "1Gi"}
    metrics = {"name": "metrics", "image": "exporter:1", "env": [{"name": "A", "value": "b"}]}
    pod["containers"].append({**metrics, "resources": {"limits": limits}})
    pod["containers"][0]["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    pod["volumes"].append({"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}})
    found = converted(yaml.safe_dump(data))
    assert not found.problems
    assert found.spec["kubernetes"] == {
        "resources": {"rdma/ib": 1},
        "node_selector": {"example.com/rack": "a"},
        "tolerations": [{"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}],
        "sidecars": [
            {"name": "metrics", "image": "exporter:1", "env": {"A": "b"}, "cpus": 0.5}
            | {"memory": 2**30},
            {"name": "proxy", "image": "proxy:2"},
        ],
        "init": [{"name": "unpack", "image": "tools:1", "command": ["tar", "x"]}],
        "service_account": "trainer",
        "image_pull_secrets": ["registry"],
        "host_network": True,
    }
    assert found.spec["mounts"] == ["pvc:corpus:/data", f"emptydir:{2**30}:/scratch"]
    assert found.spec["placement"] == {"selector": {"disk": "ssd"}}
    spec = validate_spec(found.spec)
    assert validate_spec(resolved(spec)) == spec
    assert "kubernetes" not in converted(yaml.safe_dump(data), local=True).spec


def test_a_secret_of_a_container_beside_the_ranks_is_refused() -> None:
    data = yaml.safe_load(JOB)
    pod = data["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    env = [{"name": "API_TOKEN", "value": "x"}]
    pod["initContainers"] = [{"name": "a", "image": "b:1", "env": env}]
    assert any(
        "API_TOKEN is a secret: mount a Secret" in one for one in refusals(yaml.safe_dump(data))
    )
