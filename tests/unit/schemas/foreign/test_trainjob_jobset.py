"""TrainJob and JobSet files as job specs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.kubernetes import jobset, trainjob
from phalanx.schemas.foreign.rules import Conversion, RuleTable
from phalanx.schemas.spec.document import resolved, validate_spec
from unit.schemas.foreign.test_pytorchjob import SCHEMAS, leaves

pytestmark = pytest.mark.unit
JOBSET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: mnist}
spec:
  failurePolicy: {maxRestarts: 4}
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 2
        completions: 2
        backoffLimit: 0
        template:
          spec:
            containers:
            - name: any
              image: team/mnist:1
              command: [bash, -xc]
              args:
              - |
                pip install extra
                torchrun --rdzv_id=1 --nnodes=4 --nproc_per_node=2 --master_port=3389 mnist.py
"""
TRAINJOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 3
    numProcPerNode: 4
    image: team/tune:2
    command: [torchrun, tune.py]
    env: [{name: A, value: b}]
    resourcesPerNode: {limits: {nvidia.com/gpu: 4}}
"""


def converted(text: str, local: bool = False) -> Conversion:
    found = convert(text, "job.yaml", local=local)
    assert found is not None
    return found


def check(found: Conversion) -> dict[str, Any]:
    assert not found.problems, found.problems
    spec = validate_spec(found.spec)
    assert validate_spec(resolved(spec)) == spec
    return found.spec


def test_a_jobset_becomes_a_spec() -> None:
    assert check(converted(JOBSET)) == {
        "schema": 1,
        "name": "mnist",
        "run": ["python", "-u", "mnist.py"],
        "setup": "pip install extra",
        "image": "team/mnist:1",
        "resources": {"nodes": 4, "slots_per_node": 2, "slots_per_rank": 1},
        "recovery": {"rank_crash": {"count": 4}},
    }
    assert check(converted(JOBSET, local=True))["resources"]["accelerators"] == 8


ROLES = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: actors}
spec:
  successPolicy: {operator: All, targetReplicatedJobs: [learner]}
  failurePolicy: {maxRestarts: 2}
  replicatedJobs:
  - name: actor
    replicas: 3
    dependsOn: [{name: learner, status: Ready}]
    template:
      spec:
        template:
          spec:
            containers:
            - {name: c, image: "team/rl:1", command: [python, act.py], resources: {limits: {cpu: 4}}}
  - name: learner
    template:
      spec:
        template:
          spec:
            containers:
            - {name: c, image: "team/rl:1", command: [python, learn.py], env: [{name: A, value: b}],
               resources: {limits: {nvidia.com/gpu: 2}}}
"""


def test_several_replicated_jobs_are_roles_of_one_job_and_the_target_leads() -> None:
    found = converted(ROLES)
    assert check(found) == {
        "schema": 1,
        "name": "actors",
        "image": "team/rl:1",
        "recovery": {"rank_crash": {"count": 2}},
        "roles": {
            "learner": {
                "run": ["python", "learn.py"],
                "resources": {"nodes": 1, "slots_per_node": 2, "slots_per_rank": 2},
                "env": {"A": "b"},
            },
            "actor": {
                "run": ["python", "act.py"],
                "resources": {"nodes": 3, "slots_per_node": 1, "slots_per_rank": 1, "cpus": 4},
                "required": False,
            },
        },
    }
    assert any("dependsOn" in one.key for one in found.warnings)
    assert found.lines["roles.actor.run"] == 12


def test_roles_have_images_of_their_own() -> None:
    text = ROLES.replace('team/rl:1", command: [python, act.py]', 'a:2", command: [python, act.py]')
    roles = check(converted(text))["roles"]
    assert (roles["learner"]["image"], roles["actor"]["image"]) == ("team/rl:1", "a:2")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "            containers:\n            - {name: c, image: "
            '"team/rl:1", command: [python, act.py]',
            "            terminationGracePeriodSeconds: 5\n            containers:\n"
            '            - {name: c, image: "team/rl:1", command: [python, act.py]',
            "in grace",
        ),
        (
            "operator: All, targetReplicatedJobs: [learner]",
            "operator: Any",
            "Any is possible with one",
        ),
        ("[learner]}", "[lerner]}", "there is no replicated job lerner"),
        ("name: actor\n", "name: learner\n", "needs a name of its own"),
    ],
)
def test_roles_that_one_job_cannot_have_are_refused(old: str, new: str, said: str) -> None:
    assert old in ROLES
    problems = [str(one) for one in converted(ROLES.replace(old, new, 1)).problems]
    assert any(said in one for one in problems), problems


def test_a_trainjob_becomes_a_spec() -> None:
    assert check(converted(TRAINJOB)) == {
        "schema": 1,
        "name": "tune",
        "run": ["python", "-u", "tune.py"],
        "image": "team/tune:2",
        "resources": {"nodes": 3, "slots_per_node": 4, "slots_per_rank": 1},
        "env": {"A": "b"},
    }


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (
            JOBSET,
            "completions: 2",
            "completions: 3",
            "line 12: spec.replicatedJobs[0].template.spec.co",
        ),
        (
            JOBSET,
            "replicas: 2",
            "replicas: 99999",
            "line 8: spec.replicatedJobs[0].replicas: must be a",
        ),
        (
            JOBSET,
            "  - name: workers",
            "  - {name: driver}\n  - name: workers",
            "containers: needs exactly one container",
        ),
        (
            JOBSET,
            "{maxRestarts: 4}",
            "{rules: [{action: FailJobSet}]}",
            "line 5: spec.failurePolicy.rules",
        ),
        (JOBSET, "parallelism", "paralelism", "did you mean parallelism?"),
        (
            TRAINJOB,
            "torch-distributed",
            "mpi",
            "line 5: spec.runtimeRef.name: known are torch-distributed",
        ),
        (
            TRAINJOB,
            "numNodes: 3",
            "numNodes: some",
            "line 7: spec.trainer.numNodes: must be a whole",
        ),
        (TRAINJOB, "numProcPerNode: 4", "numProcPerNode: 3", "3 processes on a node with 4 GPUs"),
        (TRAINJOB, "    command: [torchrun, tune.py]\n", "", "spec.trainer.command: is required"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_line(
    text: str, old: str, new: str, said: str
) -> None:
    assert old in text
    problems = [str(one) for one in converted(text.replace(old, new, 1)).problems]
    assert any(said in one for one in problems), problems


@pytest.mark.skipif(not SCHEMAS.exists(), reason="the schemas of the operators are not here")
@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("jobset/jobset.x-k8s.io_jobsets.yaml", jobset.TABLE),
        ("trainer-v2/trainer.kubeflow.org_trainjobs.yaml", trainjob.TABLE),
    ],
)
def test_every_key_of_the_schema_has_a_treatment(path: str, table: RuleTable) -> None:
    schema = yaml.load((SCHEMAS / path).read_text(), Loader=yaml.CSafeLoader)
    (version,) = schema["spec"]["versions"]
    paths = leaves(version["schema"]["openAPIV3Schema"])
    assert [".".join(one) for one in paths if not table.covers(one)] == []
