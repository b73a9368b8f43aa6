"""A spec is read as people write it, and every fault is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.gang.placement import Demand
from phalanx.core.jobs.budgets import DEFAULT_BUDGETS, Budget
from phalanx.core.reasons import Cause
from phalanx.core.training.checkpoints import Best, Keep
from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import (
    load_spec,
    resolved,
    script_defaults,
    to_yaml,
    validate_spec,
)
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.support import check_supported

pytestmark = pytest.mark.unit

LIVE = """
schema: 1
name: cifar
project: vision
labels: {team: vision, cost-center: 42}
run: python train.py --epochs 30
setup: pip list
framework: none
workdir: src
resources: {nodes: 2, slots_per_node: 8, slots_per_rank: 2, cpus: 16}
pool: local
priority: 70
max_duration: 12h
grace: 45s
checkpoint: {every: 500 steps, keep: {last: 2, best: {metric: val_acc}}}
recovery:
  node_lost: {}
  rank_crash: {count: 5}
  oom: 2
  user_error: unlimited
  exit_codes: {33: retry, 2: fail}
env: {EPOCHS: 3, NAME: x}
warm: {imports: [numpy.random]}
"""

EVERYTHING = """
schema: 1
run: python train.py
class: production
framework: jax
env_compat: [slurm]
image: example.org/train:1
resources: {nodes: 2+, slots_per_node: 8, accelerator: H100, accelerator_memory: 40GB..80GB,
            cpus: 16.., memory: 800GB..900GB, shm: 64GB..65GB}
roles: {server: {nodes: 1, run: python ps.py, resources: {cpus: 8}}}
data: {train: "s3://data/cifar"}
placement: {required: rack, preferred: node}
checkpoint: {every: auto, store: "s3://ckpt/vision"}
stall: {after: auto}
secrets: [WANDB_KEY]
mounts: ["pvc:data:/data:ro"]
kubernetes: {service_account: trainer, node_selector: {example.com/rack: a}}
budget: {usd: 400}
depends_on: [12, j-13]
array: 0-9
schedule: {cron: "0 3 * * *"}
"""


def problems(text: str) -> dict[str, str]:
    with pytest.raises(SpecInvalid) as caught:
        load_spec(text)
    return {one.path: str(one) for one in caught.value.problems}


def test_every_live_field_is_read_and_supported():
    spec = load_spec(LIVE)
    assert check_supported(spec) == []
    terms = spec.to_policy()
    assert (terms.shape.nodes, terms.shape.slots_per_node, terms.shape.ranks_per_node) == (2, 8, 4)
    assert (terms.grace_s, terms.max_duration_s) == (45.0, 43200.0)
    assert (spec.cpus_per_node, spec.pool, spec.priority) == (16, ["local"], 70)
    assert spec.checkpoint.every == "500 steps"
    assert spec.checkpoint.keep.to_core() == Keep(last=2, best=Best("val_acc", "max", 1))
    assert spec.env == {"EPOCHS": "3", "NAME": "x"}
    assert spec.labels["cost-center"] == "42"


def test_inputs_have_places_and_variables_of_their_own():
    text = "{run: x, data: {train: far/away, a-b: /x, a.b: 's3://bucket/y'}}"
    found = {one.path: str(one) for one in check_supported(load_spec(text))}
    assert "must be an absolute path or a URL" in found["data.train"]
    assert "has the variable of a-b, PHALANX_DATA_A_B" in found["data.a.b"]
    spec = load_spec("{run: x, data: {train: 's3://bucket/y'}}")
    assert check_supported(spec) == [] and spec.to_contract().data == {"train": "s3://bucket/y"}


def test_what_the_planner_wants_to_know():
    spec = load_spec(
        """
run: python train.py
resources: {nodes: 2..4, slots_per_node: 8, accelerator: H100, accelerator_memory: 80GB, memory: 1TB}
placement: {required: pod, preferred: rack, patience: 5m, selector: {disk: nvme}, tolerate: spot}
priority: high
preemptible: false
"""
    )
    assert check_supported(spec) == []
    assert spec.priority == 75
    terms = spec.to_policy()
    assert (terms.min_nodes, terms.shape.nodes) == (2, 4)
    assert spec.to_demand() == Demand(
        memory_per_node_bytes=10**12,
        slot_type="H100",
        device_memory_bytes=80 * 10**9,
        required="pod",
        preferred="rack",
        patience_s=300.0,
        selector=(("disk", "nvme"),),
        tolerates=("spot",),
        preemptible=False,
    )
    assert load_spec("run: x").to_policy().min_nodes is None
    assert load_spec("run: x").to_demand() == Demand()
    assert "urgent (95)" in problems("{run: x, priority: hihg}")["priority"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("resources: {nodes: 4}, placement: {domains: 2}", "needs the level of the domains"),
        ("resources: {nodes: 4}, placement: {required: node, domains: 2}", "needs the level"),
        ("resources: {nodes: 5}, placement: {required: slice, domains: 2}", "divide the 5 nodes"),
        (
            "resources: {nodes: 2..4}, placement: {required: slice, domains: 2}",
            "one number of nodes",
        ),
        (
            "resources: {accelerators: 8}, placement: {required: slice, domains: 2}",
            "one number of nodes",
        ),
        (
            "resources: {nodes: 4}, placement: {required: slice, domains: 2}, "
            "roles: {a: {run: y, resources: {nodes: 1}}}",
            "not possible with `roles`",
        ),
    ],
)
def test_parts_in_domains_of_their_own_are_equal_and_of_a_level(more, said):
    found = {one.path: str(one) for one in check_supported(load_spec(f"{{run: x, {more}}}"))}
    assert said in found["placement.domains"]


def test_parts_in_domains_of_their_own_reach_the_planner():
    spec = load_spec("{run: x, resources: {nodes: 8}, placement: {required: slice, domains: 2}}")
    assert check_supported(spec) == []
    assert spec.to_demand() == Demand(required="slice", domains=2)


def test_a_budget_is_laid_over_the_default_of_its_cause():
    policy = load_spec(LIVE).to_policy().recovery
    assert policy.budget(Cause.RANK_CRASH) == Budget(5, 3600.0)
    assert policy.budget(Cause.NODE_LOST) == DEFAULT_BUDGETS[Cause.NODE_LOST]
    assert policy.budget(Cause.OOM) == Budget(2)
    assert policy.budget(Cause.USER_ERROR) == Budget(None)
    assert (policy.retry_codes, policy.fail_codes) == ((33,), (2,))


@pytest.mark.parametrize("text", [LIVE, EVERYTHING, "run: [python, a.py]"])
def test_what_is_written_out_reads_back_the_same(text: str):
    spec = load_spec(text)
    assert validate_spec(resolved(spec)) == spec
    assert load_spec(to_yaml(resolved(spec))) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_every_field_that_is_not_built_yet_is_refused_by_name():
    refused = {one.path for one in check_supported(load_spec(EVERYTHING))}
    expected = (
        "checkpoint env_compat resources.nodes resources.cpus resources.memory "
        "resources.shm resources.accelerator_memory schedule"
    )
    assert refused == set(expected.split())


def test_no_field_is_neither_live_nor_refused():
    """A new field has to be built, or be refused: this list is the only way to say it is live."""
    live = (
        "schema name project labels class run setup framework workdir resources pool priority "
        "max_duration grace checkpoint recovery warm env training secrets stall placement "
        "preemptible metrics python roles data communication description depends_on array budget "
        "image mounts kubernetes residency tags group config_files"
    )
    refused = {one.path.partition(".")[0] for one in check_supported(load_spec(EVERYTHING))}
    known = {field.alias or name for name, field in JobSpec.model_fields.items()}
    assert known == set(live.split()) | refused


OLD_NAME = "run: x\nrecovery: {max_barren: 7}\n"


def test_a_key_with_an_earlier_name_is_read_with_a_warning():
    with pytest.warns(FutureWarning, match="recovery.max_barren is now max_restarts_without_prog"):
        spec = load_spec(OLD_NAME)
    assert spec.recovery.max_restarts_without_progress == 7
    assert spec.to_policy().recovery.max_no_progress == 7
    # A spec that was stored before is read without a warning, and written with the new name.
    stored = validate_spec({"run": "x", "recovery": {"max_barren": 7}})
    assert resolved(stored)["recovery"]["max_restarts_without_progress"] == 7
    script = "# /// script\n# [tool.phalanx]\n# recovery.max_barren = 7\n# ///\n"
    with pytest.warns(FutureWarning, match="train.py"):
        assert script_defaults(script, "train.py") == {"recovery": {"max_barren": 7}}


def test_a_spec_without_a_command_is_refused():
    assert [one.path for one in check_supported(load_spec("name: x"))] == ["run"]


def test_all_problems_are_named_at_once_with_path_value_and_remedy():
    found = problems(
        "run: x\npriority: 500\nresorces: {}\nresources: {nods: 2, slots_per_node: true}\n"
        "max_duration: soon\nrecovery: {exit_codes: {7: maybe}, oom: {cont: 3}}\n"
        "roles: {a: {nodse: 1}}\nmounts: [{path: x}]"
    )
    assert found == {
        "priority": "priority: must be at most 100 (got 500)",
        "resorces": "resorces: unknown key; did you mean resources?",
        "resources.nods": "resources.nods: unknown key; did you mean nodes?",
        "resources.slots_per_node": "resources.slots_per_node: must be a whole number (got True)",
        "max_duration": "max_duration: 'soon' is not a duration; write for example 90s, 10m or "
        "1h30m (got 'soon')",
        "recovery.exit_codes[7]": "recovery.exit_codes[7]: must be 'retry' or 'fail' (got 'maybe')",
        "recovery.oom.cont": "recovery.oom.cont: unknown key; did you mean count?",
        "roles.a.nodse": "roles.a.nodse: unknown key; did you mean nodes?",
        "mounts[0].source": "mounts[0].source: is required",
        "mounts[0].path": "mounts[0].path: must match ^/ (got 'x')",
    }


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("resources: {slots_per_node: 8, slots_per_rank: 3}", "resources", "does not divide"),
        ("resources: {nodes: 4..2}", "resources.nodes", "below its lower end"),
        ("resources: {nodes: 0}", "resources.nodes", "at least 1"),
        ("resources: {nodes: -2}", "resources.nodes", "whole number"),
        ("resources: 3", "resources", "must be a mapping"),
        ("env: {RANK: 1}", "env", "set by the platform"),
        ("env: {PHALANX_JOB: 1}", "env", "set by the platform"),
        ("env: {PHALANX_ACCEPT_PORTS: '1'}", "env", "set by the platform"),
        ("env: {PHALANX_ACCEPT: none}", "env", "must be gang, all, off"),
        ("env: {A: true}", "env.A", "quotes"),
        ("env: {1A: x}", "env.1A", "variable name"),
        ("checkpoint: {every: 0 steps}", "checkpoint.every", "at least 1"),
        ("checkpoint: {every: often}", "checkpoint.every", "500 steps"),
        ("checkpoint: {every: 0s}", "checkpoint.every", "longer than 0s"),
        ("checkpoint: {keep: {last: 0}}", "checkpoint.keep.last", "at least 1"),
        ("checkpoint: {keep: {best: {mode: max}}}", "checkpoint.keep.best.metric", "is required"),
        ("run: [python, 3]", "run", "quote numbers"),
        ("run: ''", "run", "write a command"),
        ("name: -x", "name", "letter or digit first"),
        ("project: ../up", "project", "letter or digit first"),
        ("grace: 2d", "grace", "at most 24h"),
        ("max_duration: 0", "max_duration", "longer than 0s"),
        ("schema: 2", "schema", "must be 1"),
        ("warm: 3", "warm", "must be a mapping"),
        ("schedule: {cron: daily}", "schedule.cron", "five fields"),
        ("array: 9-1", "array.indices", "ascending"),
        ("mounts: [nowhere]", "mounts[0]", "source:/path"),
    ],
)
def test_bad_values_say_what_would_be_right(text: str, path: str, says: str):
    assert says in problems(text)[path]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: [", "spec, line 1, column 5"),
        ("run: x\nrun: y", "spec, line 2, column 1"),
        ("\tx: 1", "spec, line 1, column 1"),
        ("", "spec"),
        ("- 1", "spec"),
    ],
)
def test_broken_yaml_is_named_by_line_and_column(text: str, where: str):
    assert where in problems(text)


def test_plain_words_and_numbers_with_colons_stay_what_they_look_like():
    spec = load_spec("run: x\nenv: {A: yes, B: 1:30, C: 010, D: 1.50, E: on}")
    assert spec.env == {"A": "yes", "B": "1:30", "C": "10", "D": "1.5", "E": "on"}


def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path):
    with pytest.raises(SpecInvalid, match=r"missing\.yaml: cannot be read: no such file"):
        load_spec(tmp_path / "missing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecInvalid, match="not a text file"):
        load_spec(binary)


def test_defaults_come_from_the_script_block():
    script = (
        "# /// script\n# dependencies = []\n#\n# [tool.phalanx]\n# priority = 70\n# ///\nprint()\n"
    )
    assert script_defaults(script, "a.py") == {"priority": 70}
    assert script_defaults("print()", "a.py") == {}
    with pytest.raises(SpecInvalid, match=r"a\.py: .* not valid TOML"):
        script_defaults("# /// script\n# x = \n# ///\n", "a.py")
    with pytest.raises(SpecInvalid, match="more than one"):
        script_defaults(script + script, "a.py")
