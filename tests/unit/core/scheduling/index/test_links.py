"""Fast links in placement, and gangs that find their own shape."""

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node, RoleShape
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.scheduling import PlanningInput, QueuedJob, fits_ever, plan
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.stages.preference import Preferences
from support.clusters import running

pytestmark = pytest.mark.unit


def node(name, slots=8, pool="p", **traits):
    return Node(name, pool, "h", slots, 64, 1 << 40, **traits)


def job(nodes, slots, **more):
    return QueuedJob(1, GangShape(nodes, slots, slots), 50, 1, **more)


def split(num, **more):
    shape = GangShape(1, num, num)
    return QueuedJob(1, shape, 50, 1, splits=shape.splits(1), **more)


def start(nodes, one, held=()):
    """The slots of a job's placement by node; None where it does not start."""
    one = Preferences(nodes).apply(one, None, None, History())
    decided = plan(PlanningInput(tuple(nodes), tuple(held), (one,)), 100)
    if not decided.starts:
        return None
    return {share.node: len(share.slots) for share in decided.starts[0].placement.shares}


SLOW = [node(f"slow{i}", bandwidth_gbps=10.0, price_per_slot_hour=1.0) for i in range(2)]
FAST = [node(f"fast{i}", bandwidth_gbps=200.0, price_per_slot_hour=2.0) for i in range(2)]


class TestLinks:
    def test_a_gang_is_not_spread_over_slow_and_fast_nodes(self):
        nodes = [replace(one, price_per_slot_hour=0.0) for one in (SLOW[0], *FAST, SLOW[1])]
        assert start(nodes, job(2, 8)) == {"fast0": 8, "fast1": 8}

    def test_a_gang_of_one_node_leaves_the_fast_nodes_to_others(self):
        nodes = [replace(one, price_per_slot_hour=0.0) for one in (*FAST, *SLOW)]
        assert set(start(nodes, job(1, 8))) < {"slow0", "slow1"}

    def test_cost_goes_first_unless_the_ranks_communicate_much(self):
        assert set(start([*FAST, *SLOW], job(2, 8))) == {"slow0", "slow1"}
        assert set(start([*SLOW, *FAST], job(2, 8, intensive=True))) == {"fast0", "fast1"}

    def test_a_named_order_of_pools_goes_before_links(self):
        nodes = [replace(one, pool="a") for one in SLOW] + [replace(one, pool="b") for one in FAST]
        assert set(start(nodes, job(2, 8, intensive=True, pools=("a", "b")))) == {"slow0", "slow1"}
        assert set(start(nodes, job(2, 8, intensive=True))) == {"fast0", "fast1"}

    def test_several_slots_of_one_node_go_where_their_link_is_fast(self):
        nodes = [node("pcie", interconnect="pcie"), node("nvlink", interconnect="nvlink")]
        assert set(start(nodes, job(1, 4))) == {"nvlink"}
        assert set(start(nodes, job(1, 1))) == {"pcie"}


class TestShapes:
    def test_one_node_goes_first(self):
        assert start([node("a"), node("b")], split(8)) == {"a": 8}

    def test_what_no_node_can_hold_is_split_over_the_fewest(self):
        nodes = [node(name) for name in "abc"]
        assert start(nodes, split(16)) == {"a": 8, "b": 8}
        assert fits_ever(split(16), nodes)
        assert not fits_ever(split(25), nodes)

    def test_slots_that_are_free_now_are_used(self):
        nodes = [node("n0"), node("n1")]
        held = [running(7, {0: (0, 1, 2, 3)}), running(8, {1: (0, 1, 2, 3)})]
        held = [replace(one, placement=replace(one.placement, pool="p")) for one in held]
        assert start(nodes, split(8), held) == {"n0": 4, "n1": 4}
        # A job whose ranks communicate much waits for the fewest nodes.
        assert start(nodes, split(8, intensive=True), held) is None

    def test_more_fast_nodes_go_before_fewer_slow_ones(self):
        """16 slots: 64 pairs over 1 Gbit/s cost more than 96 pairs over 400."""
        slow = [node(f"slow{i}", bandwidth_gbps=1.0) for i in range(2)]
        fast = [node(f"fast{i}", 4, bandwidth_gbps=400.0) for i in range(4)]
        nodes = [*slow, *fast, node("big", 16)]
        full = [replace(running(9, {0: tuple(range(16))}), placement=_all_of("big", 16))]
        assert set(start(nodes, split(16), full)) == {one.id for one in fast}

    def test_a_gang_has_the_shape_of_its_placement(self):
        shape = GangShape(1, 16, 8)
        policy = JobPolicy(shape, splits=shape.splits(2))
        (part,) = policy.parts(4)
        assert (part.num_nodes, part.ranks_per_node, part.slots_per_node) == (4, 2, 4)
        assert {policy.parts(n)[0].num_ranks for n in (1, 2, 4, 8)} == {8}

    def test_the_nodes_of_other_roles_do_not_change_the_first_ones_shape(self):
        shape = GangShape(1, 8, 8)
        server = RoleShape(2, 0, 1, name="server")
        policy = JobPolicy(shape, roles=(server,), splits=shape.splits(1))
        first, second = policy.parts(6)
        assert (first.num_nodes, first.slots_per_node, first.ranks_per_node) == (4, 2, 2)
        assert (second.first_node, second.num_nodes, second.first_rank) == (4, 2, 8)

    def test_a_gang_with_roles_is_split_where_no_node_holds_it(self):
        server = RoleShape(1, 0, 1, name="server")
        nodes = [node(f"n{i}", 4, bandwidth_gbps=100.0) for i in range(2)]
        assert set(start(nodes, split(8, roles=(server,)))) == {"n0", "n1"}
        assert start(nodes, split(16, roles=(server,))) is None


def _all_of(name, slots):
    from phalanx.core.gang.placement import NodeShare, Placement

    return Placement("p", (NodeShare(name, "h", tuple(range(slots))),))
