"""Gangs with several roles in the spec: two ways to write them, and what is refused."""

import pytest

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import load_spec, resolved, to_yaml, validate_spec
from phalanx.schemas.spec.support import check_supported

pytestmark = pytest.mark.unit
ALONE = """
roles:
  learner: {run: python learn.py, nodes: 2, slots_per_node: 4, training: {strategy: fsdp}}
  actor: {run: python act.py, nodes: 3, slots: 0, cpus: 2, memory: 4GB, required: false}
env: {A: "1"}
"""
BESIDE = """
run: python train.py
resources: {slots_per_node: 2}
training: {precision: bf16}
roles: {server: {nodes: 1, run: python ps.py, framework: none, resources: {cpus: 8}}}
"""


def said(text: str) -> dict[str, str]:
    return {one.path: one.message for one in check_supported(load_spec(text))}


def test_without_a_command_of_its_own_the_first_role_is_what_the_job_is_about():
    spec = load_spec(ALONE)
    assert check_supported(spec) == []
    terms = spec.to_policy()
    assert (terms.role, terms.shape) == ("learner", GangShape(2, 4, 4))
    actor = RoleShape(
        3, 0, 1, "actor", cpus_per_node=2, memory_per_node_bytes=4 * 10**9, required=False
    )
    assert terms.roles == (actor,)
    assert (terms.num_slots, terms.world_size) == (8, 11)
    learner, other = spec.plans
    assert (learner.leads, learner.training, other.leads) == (True, {"strategy": "fsdp"}, False)


def test_with_a_command_the_job_itself_is_the_first_role():
    spec = load_spec(BESIDE)
    assert check_supported(spec) == []
    worker, server = spec.plans
    assert (worker.name, worker.run) == ("worker", "python train.py")
    assert worker.training == {"precision": "bf16"}
    assert (server.run, server.framework, server.training) == ("python ps.py", "none", None)
    assert server.shape == GangShape(1, 1, 1)
    assert spec.to_demand().memory_per_node_bytes == 0


@pytest.mark.parametrize("text", [ALONE, BESIDE])
def test_what_is_written_out_reads_back_the_same_in_the_same_order(text: str):
    spec = load_spec(text)
    assert validate_spec(resolved(spec)) == spec
    assert load_spec(to_yaml(resolved(spec))).plans == spec.plans


SHARED = """
roles:
  master: {run: python train.py --log, slots: 2, cpus: 4, training: {precision: bf16}}
  evaluator: {run: python eval.py, slots: 1, required: false}
  worker: {run: python train.py, world: shared, nodes: 3, slots: 4, env: {A: "1"}}
checkpoint: {directory: out}
"""


def test_a_role_can_share_the_world_of_the_first_one():
    spec = load_spec(SHARED)
    assert check_supported(spec) == []
    assert [plan.name for plan in spec.plans] == ["master", "worker", "evaluator"]
    policy, contract = spec.to_policy(), spec.to_contract()
    assert [one.shares_world for one in policy.roles] == [True, False]
    assert [role.leads for role in contract.roles] == [True, True, False]
    assert [role.reference_world for role in contract.roles] == [14, 14, 1]
    assert [role.checkpoint.directory for role in contract.roles] == ["out", "out", None]
    assert [role.training for role in contract.roles] == [{"precision": "bf16"}] * 2 + [None]
    assert contract.roles[1].command.words == ("python train.py",)
    assert load_spec(to_yaml(resolved(spec))).plans == spec.plans


def test_what_a_role_of_a_shared_world_cannot_say_of_its_own():
    two = "{run: x, resources: {slots_per_node: 2}, %s roles: {b: {slots: 3, world: shared %s}}}"
    assert said(two % ("", "")) == {}
    assert "one framework, torch" in said(two % ("", ", framework: jax"))["roles.b.framework"]
    assert "cannot go on" in said(two % ("", ", required: false"))["roles.b.required"]
    assert "that of worker" in said(two % ("", ", training: {strategy: fsdp}"))["roles.b.training"]
    assert said(two % ("framework: tensorflow,", "")) == said(two % ("framework: ray,", "")) == {}
    for name in ("mpi", "optuna"):
        found = said(two % (f"framework: {name},", ""))["framework"]
        assert found.startswith(
            f"{name} starts an equal number of processes on each node: give all"
        )
        assert "in one role with `resources.nodes`; or write one of torch, jax, tensorflow" in found
    elastic = "{run: x, resources: {nodes: 2..4}, roles: {b: {world: shared}}}"
    assert (
        "write one number, such as 4; only nodes that are all" in said(elastic)["resources.nodes"]
    )
    inside = "{run: x, roles: {b: {world: shared, nodes: 2..3}}}"
    assert "such as 3" in said(inside)["roles.b.resources.nodes"]
    first = said("{roles: {a: {run: x, world: shared}}}")
    assert "has a world of its own" in first["roles.a.world"]
    with pytest.raises(SpecInvalid, match="world"):
        load_spec("{run: x, roles: {a: {world: other}}}")


def test_a_layout_counts_the_ranks_of_the_whole_world_and_keeps_to_nodes():
    def at(strategy: str) -> str:
        text = (
            "{run: x, resources: {slots_per_node: 2}, training: {strategy: %s}, roles: {b: {%s}}}"
        )
        return said(text % (strategy, "nodes: 2, slots: 4, world: shared")).get(
            "training.strategy", ""
        )

    assert at("{fsdp: 5, tp: 2}") == at("{fsdp: 10}") == at("fsdp") == at("auto") == ""
    assert "there are 10" in at("{fsdp: 4}")
    assert at("{tp: 5}") == (
        "tp=5 does not divide the ranks on every node of the world: worker has 2, b has 4"
    )
    assert "tp=10 does not divide" in at("tp")


def test_what_is_refused_and_what_would_be_right():
    assert said("{roles: {a: {slots: 1}}}") == {
        "roles.a.run": "is required: the job has no `run` of its own"
    }
    assert (
        "needs at least one slot"
        in said("{roles: {a: {run: x, slots: 0}}}")["roles.a.resources.slots_per_node"]
    )
    assert (
        "fixed size"
        in said("{run: x, resources: {nodes: 2..4}, roles: {a: {slots: 1}}}")["resources.nodes"]
    )
    assert "another name" in said("{run: x, roles: {worker: {slots: 1}}}")["roles.worker"]
    assert "write in `roles`" in said("{resources: {nodes: 2}, roles: {a: {run: x}}}")["resources"]
    assert "first role" in said("{roles: {a: {run: x, required: false}}}")["roles.a.required"]
    assert "torch, jax" in said("{run: x, framework: mpi, roles: {a: {}}}")["framework"]
    layout = "{run: x, roles: {a: {slots: 3, training: {strategy: {tp: 2, fsdp: 2}}}}}"
    assert "roles.a.training.strategy" in said(layout)
    with pytest.raises(SpecInvalid, match="given twice"):
        load_spec("{run: x, roles: {a: {nodes: 1, resources: {nodes: 2}}}}")
    with pytest.raises(SpecInvalid, match="set by the platform"):
        load_spec("{run: x, roles: {a: {env: {RANK: '1'}}}}")
