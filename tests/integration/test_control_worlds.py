"""One world over unequal nodes in the control plane: assignments, reports, and what users see of them."""

from __future__ import annotations

import pytest

from integration.rig import Rig, ScriptedSupervisor
from integration.test_control_posted_metrics import client_of, point, token_of
from integration.test_control_stacks import WAITS, stacks
from phalanx.core.gang.placement import Node
from phalanx.errors import SpecInvalid, UserError
from phalanx.schemas.wire import supervision as wire
from phalanx.store import lineage

pytestmark = pytest.mark.integration
WORLD = {
    "master": {"slots_per_node": 2, "cpus": 2},
    "worker": {"world": "shared", "nodes": 2, "slots_per_node": 1, "run": "python w.py"},
    "evaluator": {"slots_per_node": 1, "required": False, "run": "python e.py"},
}


@pytest.fixture
def gang(rig: Rig) -> list[ScriptedSupervisor]:
    """Node rank 0 has ranks 0 and 1, node ranks 1 and 2 have 2 and 3; the evaluator is beside them."""
    rig.executor.nodes = (
        Node("wide", "local", "10.0.0.1", 2, 8, 8 << 30),
        *(Node(f"thin-{n}", "local", f"10.0.1.{n}", 1, 8, 8 << 30) for n in range(3)),
    )
    roles = {name: {"run": "python train.py", **role} for name, role in WORLD.items()}
    num = rig.submit(run=None, resources={}, roles=roles, checkpoint={"directory": "out"})
    rig.turn()
    found = [rig.supervisor(num, node_rank) for node_rank in range(4)]
    for one in found:
        one.ready(port=4000 + one.ref.node_rank)
    for one in found:
        one.started(pids=tuple(range(one.assignment.num_ranks)))
    return found


def test_each_node_is_given_its_part_of_one_world(rig: Rig, gang: list[ScriptedSupervisor]) -> None:
    given = [one.assignment for one in gang]
    assert [(one.first_rank, one.num_ranks) for one in given] == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert [one.gang.world.size for one in given] == [4, 4, 4, 1]
    assert [one.node_in_world for one in given] == [0, 1, 2, 0]
    assert [one.leads for one in given] == [True, True, True, False]
    assert len({one.gang.checkpoint_dir for one in given[:3]}) == 1
    assert given[3].gang.checkpoint_dir.endswith("/roles/evaluator")
    assert [one.gang.role.reference_world for one in given] == [4, 4, 4, 1]
    assert [one.gang.role.checkpoint.directory for one in given] == ["out", "out", "out", None]
    assert [one.command for one in given[:2]] == ["python train.py", "python w.py"]
    orders = [one.sync().orders for one in gang]
    assert [one.master_address for one in orders] == ["10.0.0.1"] * 3 + ["10.0.1.2"]
    assert [one.master_port for one in orders] == [4000] * 3 + [4003]
    roles = {one.name: (one.world, one.world_size, one.num_ranks) for one in rig.job(1).roles}
    assert roles == {
        "master": ("master", 4, 2),
        "worker": ("master", 4, 2),
        "evaluator": ("evaluator", 1, 1),
    }
    assert (rig.job(1).world_size, rig.job(1).num_slots) == (5, 5)
    rig.check_log(1)


def test_ranks_of_a_shared_world_have_the_number_that_their_script_sees(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    with client_of(rig, token_of(gang[2], node_rank=2)) as client:
        client.post_metrics(1, [point(9)], rank=3)
        with pytest.raises(UserError, match="rank 2 does not run on the node"):
            client.post_metrics(1, [point(9)], rank=2)
    (one,) = rig.client.metrics(1, role="worker", ranks=[3]).series
    assert (one.rank, one.role, one.steps) == (3, "worker", [9])
    # A rank of a shared world reports for the job; one of a role beside it does not.
    assert rig.store.view(lambda tx: lineage.last_step(tx, 1)) == 9
    with client_of(rig, token_of(gang[3], node_rank=3)) as client:
        client.post_metrics(1, [point(77)], rank=4)
    assert rig.store.view(lambda tx: lineage.last_step(tx, 1)) == 9
    with pytest.raises(UserError, match="role worker of j-1 has no rank 0") as refused:
        rig.client.metrics(1, role="worker", ranks=[0])
    assert "2 ranks, 2 to 3" in str(refused.value.hint)
    gang[1].log(0, b"hello\n", rank=2)
    (line,) = rig.client.logs(1, role="worker", ranks=[2]).lines
    assert (line.role, line.rank_in_role, line.rank) == ("worker", 2, 2)


def test_a_guards_verdict_names_the_nodes_of_a_shared_world(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    report = wire.GuardReport(
        seq=gang[0].next_seq(),
        generation=0,
        step=7,
        what="spike",
        origin="hardware",
        action="applied",
        ranks=[1, 2, 3, 77],
    )
    gang[0].sync(report)
    (found,) = [one for one in rig.client.history(1) if one.kind == "guarded"]
    nodes = {one.node_rank: one.node for one in rig.job(1).nodes}
    assert found.data["nodes"] == [nodes[0], nodes[1], nodes[2]]


def test_a_stall_is_compared_over_the_roles_of_a_world_and_no_other(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    failure = gang[0].failure("no step for 5s", cause="stalled", rank=None)
    gang[0].sync(
        stacks(gang[0], 0, 0, 33, WAITS),
        wire.RanksStalledReport(seq=0, generation=0, failure=failure).model_copy(
            update={"seq": gang[0].next_seq()}
        ),
    )
    gang[3].sync(stacks(gang[3], 1, 4, 99))  # waits elsewhere, in another world
    gang[1].sync(stacks(gang[1], 1, 2, 33, WAITS))
    gang[2].sync(stacks(gang[2], 1, 3, 77))
    view = rig.job(1)
    assert (view.state, view.failure.rank) == ("recovering", 3)


def test_a_shape_that_no_node_has_is_named_by_its_role(rig: Rig) -> None:
    roles = {"a": {"run": "x", "slots_per_node": 1}, "b": {"slots_per_node": 9, "world": "shared"}}
    with pytest.raises(SpecInvalid) as refused:
        rig.submit(run=None, resources={}, roles={**roles, "b": {**roles["b"], "run": "x"}})
    (problem,) = refused.value.problems
    assert problem.path == "roles.b.resources.slots_per_node"
