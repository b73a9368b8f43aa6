"""Worlds over unequal nodes: ranks without gaps, whole placements, and nothing counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.contract.gang import RankFiles, WorldShape
from phalanx.core.frameworks.adapter import REGISTRY
from phalanx.core.frameworks.rank_environment import NodeSetting, rank_environment
from phalanx.core.gang.placement import GangShape, Node, RoleShape
from phalanx.core.gang.roles import node_of_rank, part_at, part_of_rank, world_of
from phalanx.core.jobs import events as e
from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.scheduling import PlanningInput, Project, QueuedJob, RunningJob, plan
from phalanx.core.scheduling.explain.why import why
from phalanx.schemas.wire.supervision import Orders
from phalanx.testing.executors import gang_contract
from support.clusters import nodes as make_nodes

pytestmark = pytest.mark.unit
FILES = RankFiles("/n/r.report", "/n/control", "/n/r.error.json")
ORDERS = Orders(version="1", action=Action.RUN, master_address="h", master_port=1)


@st.composite
def policies(draw: st.DrawFn) -> JobPolicy:
    """A gang with one world over roles of different shapes, and perhaps roles beside it."""

    def shape() -> tuple[int, int]:
        return draw(st.integers(1, 3)), draw(st.integers(1, 4))

    shared = draw(st.lists(st.booleans(), max_size=3).map(sorted))
    roles = []
    for number, beside in enumerate(shared):
        nodes, slots = shape()
        roles.append(
            RoleShape(nodes, slots, slots, f"r{number}", slot_type="", shares_world=not beside)
        )
    nodes, slots = shape()
    return JobPolicy(GangShape(nodes, slots, slots), role="first", roles=tuple(roles))


@given(policies())
def test_ranks_of_every_world_are_numbered_without_gaps(policy: JobPolicy) -> None:
    parts = policy.parts()
    assert [rank for part in parts for rank in part.ranks] == list(range(policy.world_size))
    assert sum(part.num_nodes for part in parts) == parts[-1].nodes.stop
    for part in parts:
        world = world_of(parts, part)
        shape = WorldShape.of([one.ranks_per_node for one in world for _ in one.nodes])
        counted = [rank for one in world for rank in one.ranks_in_world]
        assert counted == list(range(shape.size))
        for node_rank in part.nodes:
            here = part.node_ranks(node_rank)
            at = node_rank - part.world_node
            assert here.start == part.world_rank + shape.first_rank(at)
            assert len(here) == shape.ranks_on(at)
            assert all(node_of_rank(parts, rank) == node_rank for rank in here)
            assert {part_of_rank(parts, rank) for rank in here} == {part_at(parts, node_rank)}
    assert node_of_rank(parts, policy.world_size) is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_variables_of_all_ranks_agree(sizes: list[int]) -> None:
    contract = replace(gang_contract(1, framework="horovod"), world=WorldShape.of(sizes))
    seen, across = [], dict[str, list[tuple[int, int]]]()
    for node, size in enumerate(sizes):
        for local in range(size):
            rank = contract.rank(ORDERS, node, local, FILES)
            node_setting = NodeSetting(env={}, cpus=8)
            env = rank_environment(REGISTRY["horovod"], contract, ORDERS, rank, node_setting)
            assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(sum(sizes)), str(size))
            assert (env["LOCAL_RANK"], env["GROUP_RANK"]) == (str(local), str(node))
            assert (env["GROUP_WORLD_SIZE"], env["PET_NNODES"]) == (str(len(sizes)),) * 2
            seen.append(int(env["RANK"]))
            group = across.setdefault(env["HOROVOD_LOCAL_RANK"], [])
            group.append((int(env["HOROVOD_CROSS_RANK"]), int(env["HOROVOD_CROSS_SIZE"])))
    assert seen == list(range(sum(sizes)))
    for group in across.values():
        assert group == [(number, len(group)) for number in range(len(group))]


KINDS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3)


def cluster(kinds: list[tuple[int, int]]) -> tuple[Node, ...]:
    """Nodes of several sizes in racks of two."""
    return tuple(
        replace(node, id=f"{size}-{kind}-{node.id}")
        for kind, (num, size) in enumerate(kinds)
        for node in make_nodes(num, size)
    )


def queued(num: int, policy: JobPolicy, **more: object) -> QueuedJob:
    return QueuedJob(num, policy.shape, 50, num, roles=policy.roles, **more)  # type: ignore[arg-type]


@settings(deadline=None)
@given(KINDS, policies(), st.integers(0, 30))
def test_a_gang_is_placed_whole_and_each_node_has_its_own_shape(
    kinds: list[tuple[int, int]], policy: JobPolicy, most: int
) -> None:
    there, job = cluster(kinds), queued(1, policy, project="a")
    limit = (Project("a", max_slots=most),)
    decided = plan(PlanningInput(there, (), (job,), limit), 1)
    if not decided.starts:
        found = why(PlanningInput(there, (), (job,), limit), 1, 1)
        assert found is not None and found.reason.message
        if most >= policy.num_slots:
            # Nothing but the nodes stands in the way: no node list of this cluster holds the gang.
            assert not _fits(there, policy)
        return
    (start,) = decided.starts
    # The job machine refuses a placement in which a node has another shape than its role.
    placed = decide(create(e.Submitted(1, policy), 1), e.AttemptPlaced(1, start.placement), 1).job
    assert placed.attempt is not None and placed.attempt.num_slots == policy.num_slots <= most
    held = [(share.node, slot) for share in start.placement.shares for slot in share.slots]
    assert len(set(held)) == len(held) == policy.num_slots
    names = [share.node for share in start.placement.shares]
    sizes = {node.id: node.num_slots for node in there}
    assert all(
        sum(len(one.slots) for one in start.placement.shares if one.node == name) <= sizes[name]
        for name in names
    )
    # What it holds is counted, so that a second gang never takes the same slots.
    running = RunningJob(1, start.placement, project="a", roles=policy.roles)
    second = plan(PlanningInput(there, (running,), (queued(2, policy, project="a"),), limit), 2)
    for one in second.starts:
        theirs = {(share.node, slot) for share in one.placement.shares for slot in share.slots}
        assert not theirs & set(held)
        assert 2 * policy.num_slots <= most


def _fits(there: tuple[Node, ...], policy: JobPolicy) -> bool:
    """Whether the largest shares first, each on the node with the least sufficient room, all fit.

    Nodes hold several shares of different roles, but one share of each role.
    """
    free = {node.id: node.num_slots for node in there}
    for part in sorted(policy.parts(), key=lambda one: (-one.slots_per_node, -one.num_nodes)):
        room = sorted((left, name) for name, left in free.items() if left >= part.slots_per_node)
        if len(room) < part.num_nodes:
            return False
        for _, name in room[: part.num_nodes]:
            free[name] -= part.slots_per_node
    return True
