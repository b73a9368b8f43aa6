"""The index of free slots: every count equals a recount of the nodes, and every change can be undone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement, RoleShape
from phalanx.core.scheduling.index.slots import (
    NODE_BITS,
    Allocation,
    NodeGroup,
    SlotIndex,
    mask_of,
    pick,
    slots_of,
    wants_of,
)
from phalanx.errors import InvariantBroken
from support.clusters import nodes

pytestmark = pytest.mark.unit


class TestMasks:
    @pytest.mark.parametrize(
        ("slots", "mask"), [((), 0), ((0,), 1), ((0, 2, 5), 0b100101), ((3, 1), 0b1010)]
    )
    def test_slots_are_bits(self, slots: tuple[int, ...], mask: int) -> None:
        assert mask_of(slots) == mask
        assert slots_of(mask) == tuple(sorted(slots))

    @pytest.mark.parametrize(
        ("free", "wanted", "picked"),
        [
            (0b1111, 4, 0b1111),
            (0b1010, 2, 0b1010),
            (0b1111, 0, 0),
            (0b1110, 2, 0b1100),  # an aligned pair
            (0b10110, 2, 0b00110),  # no aligned pair: the lowest
            (0b1111_0111, 4, 0b1111_0000),
            (0b0111_1110, 4, 0b0001_1110),
            (0b111101, 3, 0b001101),  # three are never aligned
            (0b1000, 1, 0b1000),
        ],
    )
    def test_aligned_slots_are_picked_where_there_are_any(
        self, free: int, wanted: int, picked: int
    ) -> None:
        assert pick(free, wanted) == picked

    @given(st.integers(1, (1 << 16) - 1), st.data())
    def test_so_many_free_slots_are_picked(self, free: int, data: st.DataObject) -> None:
        wanted = data.draw(st.integers(0, free.bit_count()))
        picked = pick(free, wanted)
        assert picked.bit_count() == wanted
        assert not picked & ~free


MIXED = (
    *nodes(3, 4, rack=2),
    *(replace(one, id=f"w{i}") for i, one in enumerate(nodes(3, 8, rack=2))),
    replace(nodes(1, 4)[0], id="shut", closed="drained"),
    replace(nodes(1, 4)[0], id="odd", domains=(("rack", "r9"),), taints=("noisy",)),
    *(replace(one, id=f"half{i}", host="m") for i, one in enumerate(nodes(2, 4, rack=2))),
)


def recounted(index: SlotIndex, group: NodeGroup) -> tuple[object, ...]:
    """What a group should say of its nodes, by looking at each."""
    inside = [
        node
        for node, its in enumerate(index.group_of)
        if its is group and not index.nodes[node].closed
    ]
    free = {node: index.free[node].bit_count() for node in inside}
    by_free = [[n for n in inside if free[n] == count] for count in range(group.size + 1)]
    leaf_full = [
        [n for n in by_free[group.size] if index.leaf_of[n] == leaf]
        for leaf in range(len(group.leaves))
    ]
    leaves_by_full = [
        [leaf for leaf, full in enumerate(leaf_full) if len(full) == count]
        for count in range(len(group.leaves_by_full))
    ]
    domain_full: list[dict[str, int]] = [{} for _ in group.levels]
    for leaf, path in enumerate(group.leaves):
        for depth, name in enumerate(path):
            domain_full[depth][name] = domain_full[depth].get(name, 0) + len(leaf_full[leaf])
    return (by_free, leaf_full, leaves_by_full, domain_full, sum(free.values()))


def assert_counted(index: SlotIndex, taken: list[Allocation]) -> None:
    """The index says of slots, CPUs, memory and every group what a recount says."""
    for node, facts in enumerate(index.nodes):
        here = [one for one in taken if one.node == node]
        held = mask_of(slot for one in here for slot in slots_of(one.mask))
        assert index.free[node] == (1 << facts.num_slots) - 1 & ~held
        assert index.num_free[node] == facts.num_slots - held.bit_count()
        machine = [one for one in taken if one.node in index.host(node)]
        assert index.cpus[node] == facts.num_cpus - sum(one.cpus for one in machine)
        assert index.memory[node] == facts.memory_bytes - sum(one.memory_bytes for one in machine)
    for group in index.groups:
        assert group.state() == recounted(index, group)
        for leaf, here in enumerate(index.in_order(group)):
            assert here == sorted(
                index.num_free[node] << NODE_BITS | node
                for bucket in group.by_free
                for node in bucket
                if index.leaf_of[node] == leaf
            )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "give", "mark", "rollback", "settle"]),
        st.integers(0, len(MIXED) - 1),
        st.integers(0, 8),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(STEPS)
def test_every_count_is_that_of_a_recount(steps: list[tuple[str, int, int, int]]) -> None:
    index, taken = SlotIndex(MIXED), list[Allocation]()
    marks: list[tuple[int, list[Allocation], object]] = []
    for step, node, wanted, cpus in steps:
        if step == "take":
            mask = pick(index.free[node], min(wanted, index.num_free[node]))
            one = Allocation(node, mask, cpus, 10 * cpus)
            index.take(one)
            taken.append(one)
        elif step == "give" and taken:
            index.give(taken.pop(wanted % len(taken)))
        elif step == "mark":
            marks.append((index.mark(), list(taken), index.state()[:4]))
        elif step == "rollback" and marks:
            mark, taken, _ = marks.pop()
            index.rollback(mark)
            assert index.mark() == mark
        elif step == "settle":
            index.settle()
            marks.clear()
            assert index.mark() == 0
        assert_counted(index, taken)
    anew = SlotIndex(MIXED)
    for one in taken:
        anew.take(one)
    assert index.state() == anew.state()


class TestChanges:
    def test_slots_are_taken_and_given_once(self) -> None:
        index = SlotIndex(nodes(1))
        index.take(Allocation(0, 0b0110))
        with pytest.raises(InvariantBroken, match="n0: slots 1100 are not free"):
            index.take(Allocation(0, 0b1100))
        with pytest.raises(InvariantBroken, match="n0: slots 11 are not held"):
            index.give(Allocation(0, 0b0011))
        # What failed has changed nothing.
        assert_counted(index, [Allocation(0, 0b0110)])

    def test_a_rollback_undoes_both_kinds_of_change_to_its_mark(self) -> None:
        index = SlotIndex(nodes(2))
        index.take(Allocation(0, 0b1111, 2, 5))
        outer = index.mark()
        index.take(Allocation(1, 0b0001, 1, 1))
        inner = index.mark()
        index.give(Allocation(0, 0b1111, 2, 5))
        index.rollback(inner)
        assert_counted(index, [Allocation(0, 0b1111, 2, 5), Allocation(1, 0b0001, 1, 1)])
        index.rollback(outer)
        assert_counted(index, [Allocation(0, 0b1111, 2, 5)])

    def test_what_is_settled_is_permanent(self) -> None:
        index = SlotIndex(nodes(1))
        index.take(Allocation(0, 0b0001))
        index.settle()
        index.rollback(0)
        assert index.free == [0b1110]

    def test_slots_of_a_closed_node_are_not_counted_as_free(self) -> None:
        index = SlotIndex(nodes(2, closed="drained"))
        (group,) = index.groups
        assert (group.num_nodes, group.num_free, group.by_free[4]) == (0, 0, [])
        index.take(Allocation(0, 0b0011))
        index.give(Allocation(0, 0b0011))
        assert (index.free, group.num_free, group.by_free[4]) == ([15, 15], 0, [])


class TestGroups:
    @pytest.mark.parametrize(
        ("facts", "apart"),
        [
            ({}, False),
            ({"domains": (("rack", "r8"),)}, False),
            ({"num_cpus": 99}, False),
            ({"closed": "drained"}, False),
            ({"pool": "q"}, True),
            ({"slot_type": "H100"}, True),
            ({"num_slots": 8}, True),
            ({"device_memory_bytes": 1}, True),
            ({"taints": ("noisy",)}, True),
            ({"price_per_slot_hour": 2.0}, True),
            ({"hazard_per_hour": 0.1}, True),
            ({"labels": (("zone", "a"),)}, True),
        ],
    )
    def test_nodes_of_one_group_differ_only_in_place_and_load(
        self, facts: dict[str, object], apart: bool
    ) -> None:
        first, second = nodes(2)
        index = SlotIndex((first, replace(second, **facts)))
        assert len(index.groups) == 1 + apart

    def test_leaves_are_paths_and_domains_count_their_nodes(self) -> None:
        racks = [("b0", "r0"), ("b0", "r0"), ("b0", "r1"), ("b1", "r2")]
        index = SlotIndex(
            replace(one, domains=(("block", block), ("rack", rack)))
            for one, (block, rack) in zip(nodes(4), racks, strict=True)
        )
        (group,) = index.groups
        assert group.levels == ("block", "rack")
        assert group.leaves == [("b0", "r0"), ("b0", "r1"), ("b1", "r2")]
        assert index.leaf_of == [0, 0, 1, 2]
        assert group.domain_leaves == [
            {"b0": [0, 1], "b1": [2]},
            {"r0": [0], "r1": [1], "r2": [2]},
        ]
        assert (group.largest, group.largest_leaf) == ([3, 2], 2)

    def test_one_splittable_node_makes_its_group_splittable(self) -> None:
        first, second = nodes(2)
        index = SlotIndex((first, replace(second, splittable=True)))
        assert [group.splittable for group in index.groups] == [True]
        assert [group.splittable for group in SlotIndex((first, second)).groups] == [False]

    def test_open_nodes_of_one_machine_are_one_host(self) -> None:
        first, second, third, fourth = nodes(4, rack=4)
        index = SlotIndex(
            (
                replace(first, host="m"),
                second,
                replace(third, host="m"),
                replace(fourth, host="m", closed="lost"),
            )
        )
        assert index.groups[0].hosts == [(0, 2), (1,)]
        assert [index.host(node) for node in range(4)] == [(0, 2, 3), (1,), (2, 0, 3), (3, 0, 2)]


class TestPlacements:
    INDEX = SlotIndex(nodes(3))

    def test_an_allocation_goes_there_and_back(self) -> None:
        shares = (NodeShare("n2", "h", (1, 3)), NodeShare("n0", "h", (0,)))
        found = self.INDEX.allocations(Placement("p", shares), 2, 7)
        assert found == [Allocation(2, 0b1010, 2, 7), Allocation(0, 0b0001, 2, 7)]
        back = self.INDEX.placement(found)
        assert back == Placement("p", shares)
        assert self.INDEX.placement(found).shares[0] is back.shares[0]

    def test_shares_on_nodes_that_are_gone_or_smaller_now_are_left_out(self) -> None:
        shares = (NodeShare("gone", "h", (0,)), NodeShare("n1", "h", (3, 4, 5)))
        assert self.INDEX.allocations(Placement("p", shares), 1, 2) == [Allocation(1, 0b1000, 1, 2)]

    def test_the_last_shares_take_what_their_roles_take(self) -> None:
        shares = tuple(NodeShare(name, "h", (0,)) for name in ("n0", "n1", "n2"))
        roles = (GangShape(1, 1, 1), RoleShape(1, 1, 1, "head", 5, 6))
        found = self.INDEX.allocations(Placement("p", shares), 1, 2, roles)
        assert [(one.cpus, one.memory_bytes) for one in found] == [(1, 2), (1, 2), (5, 6)]
        # Fewer shares than roles: their CPUs are those of the gang.
        found = self.INDEX.allocations(Placement("p", shares[:1]), 1, 2, roles)
        assert found == [Allocation(0, 1, 1, 2)]

    @pytest.mark.parametrize(
        ("shape", "wants"),
        [(GangShape(1, 4, 4), (3, 9)), (RoleShape(1, 0, 1, "head", 5, 6), (5, 6))],
    )
    def test_a_role_wants_its_own_cpus(self, shape: GangShape, wants: tuple[int, int]) -> None:
        assert wants_of(shape, 3, 9) == wants


def test_an_index_of_no_nodes_is_empty() -> None:
    index = SlotIndex(list[Node]())
    assert (index.groups, index.pools, index.state()[0]) == ([], (), [])
