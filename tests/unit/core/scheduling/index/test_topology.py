"""Where a gang goes: kinds of nodes in order, the narrowest domain, best fit, roles, and hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, Node, RoleShape
from phalanx.core.scheduling import QueuedJob
from phalanx.core.scheduling.index import empty_cluster
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster, narrowest_levels
from phalanx.core.scheduling.index.slots import Allocation, SlotIndex, pick
from phalanx.core.scheduling.index.topology import (
    areas,
    hosts,
    lands,
    levels,
    num_leaves,
    part_request,
    parts,
    place,
    place_on,
    request_of,
    suitable,
)
from support.clusters import nodes, queued

pytestmark = pytest.mark.unit


def in_blocks(num: int, size: int = 4, **more: object) -> tuple[Node, ...]:
    """Nodes in racks of two, and racks in blocks of two."""
    return tuple(
        replace(one, domains=(("block", f"b{i // 4}"), *one.domains))
        for i, one in enumerate(nodes(num, size, **more))
    )


def laid(index: SlotIndex, job: QueuedJob) -> list[str] | None:
    """The nodes of a placement, node rank by node rank; nothing is changed."""
    request, before = request_of(job), index.state()
    found = place(index, request, suitable(index, request), job.shape)
    assert index.state() == before
    return None if found is None else [index.nodes[one.node].id for one in found]


def index_of(some: tuple[Node, ...], taken: dict[int, int], cpus: int = 0) -> SlotIndex:
    """An index with so many slots of some nodes taken."""
    index = SlotIndex(some)
    for node, num in taken.items():
        index.take(Allocation(node, pick(index.free[node], num), cpus))
    return index


class TestKinds:
    @pytest.mark.parametrize(
        ("asked", "node", "fits"),
        [
            ({}, {}, True),
            ({"pools": ("q",)}, {}, False),
            ({"slot_type": "H100"}, {}, False),
            ({"slot_type": "H100"}, {"slot_type": "H100"}, True),
            ({"device_memory_bytes": 8}, {"device_memory_bytes": 7}, False),
            ({"device_memory_bytes": 8}, {"device_memory_bytes": 8}, True),
            # An accelerator of unknown memory counts as one of 16 GB; CPU slots have none.
            ({"device_memory_bytes": 16 * 10**9}, {"slot_type": "T4"}, True),
            ({"device_memory_bytes": 16 * 10**9 + 1}, {"slot_type": "T4"}, False),
            ({"device_memory_bytes": 1}, {}, False),
            ({}, {"taints": ("spot",)}, False),
            ({"tolerates": ("spot", "x")}, {"taints": ("spot",)}, True),
            ({"tolerates": ("spot",)}, {"taints": ("spot", "x")}, False),
            ({"selector": (("zone", "a"),)}, {"labels": (("zone", "b"),)}, False),
            ({"selector": (("zone", "a"),)}, {"labels": (("k", "v"), ("zone", "a"))}, True),
            ({"residency": ("eu",)}, {"labels": (("residency", "eu"),)}, True),
            ({"residency": ("eu", "us")}, {"labels": (("residency", "us"),)}, True),
            ({"residency": ("eu",)}, {"labels": ()}, False),
            ({"residency": ()}, {"labels": (("residency", "eu"),)}, False),
            ({"required": "rack"}, {}, True),
            ({"required": "node"}, {"domains": ()}, True),
            ({"required": "rack"}, {"domains": ()}, False),
            ({}, {"num_slots": 3}, False),
            ({"roles": (RoleShape(1, 2, 1),)}, {"num_slots": 3}, True),
        ],
    )
    def test_a_kind_of_node_suits_a_job_or_not(
        self, asked: dict[str, object], node: dict[str, object], fits: bool
    ) -> None:
        index = SlotIndex(replace(one, **node) for one in nodes(2))
        assert bool(suitable(index, request_of(queued(1, 1, 4, **asked)))) is fits

    def test_kinds_come_by_pool_then_price_and_hazard_then_size(self) -> None:
        (one,) = nodes(1)
        kinds = {
            "dear": {"price_per_slot_hour": 3.0},
            "risky": {"price_per_slot_hour": 2.0, "hazard_per_hour": 0.75},
            "cheap": {"price_per_slot_hour": 2.0},
            "wide": {"price_per_slot_hour": 2.0, "num_slots": 8},
            "other": {"pool": "q"},
        }
        index = SlotIndex(replace(one, id=name, **facts) for name, facts in kinds.items())

        def order(*pools: str) -> list[str]:
            found = suitable(index, request_of(queued(1, 1, 4, pools=pools)))
            return [index.nodes[index.group_of.index(group)].id for group in found]

        assert order() == ["cheap", "wide", "dear", "risky", "other"]
        assert order("q", "p") == ["other", "cheap", "wide", "dear", "risky"]
        assert order("q") == ["other"]

    def test_a_role_is_hosted_by_its_own_slot_type(self) -> None:
        (group,) = SlotIndex(nodes(1, slot_type="L4", device_memory_bytes=5)).groups
        request = request_of(queued(1, 1, 4, slot_type="H100", device_memory_bytes=9))
        assert not hosts(group, request, request.shape)
        assert hosts(group, request, RoleShape(1, 1, 1, "head"))
        assert hosts(group, request, RoleShape(1, 1, 1, "head", slot_type="L4"))
        assert not hosts(group, request, RoleShape(1, 1, 1, "head", slot_type="H100"))
        assert not hosts(group, request, RoleShape(1, 5, 1, "head"))
        own = part_request(request, RoleShape(1, 1, 1, "head", 3, 7))
        assert (own.cpus, own.memory_bytes) == (3, 7)
        assert part_request(request, request.shape) is request

    def test_parts_that_need_most_of_a_node_are_placed_first(self) -> None:
        shape, roles = GangShape(1, 2, 1), (GangShape(3, 2, 1), GangShape(1, 8, 1))
        assert [at for at, _ in parts(shape, roles)] == [2, 1, 0]


class TestLevels:
    INDEX = SlotIndex((*in_blocks(6), replace(in_blocks(7)[6], closed="drained")))

    @pytest.mark.parametrize(
        ("required", "found"),
        [
            (None, ["rack", "block", None]),
            ("rack", ["rack"]),
            ("block", ["rack", "block"]),
            ("node", ["node"]),
        ],
    )
    def test_levels_go_from_the_narrowest_to_the_required_one(
        self, required: str | None, found: list[str | None]
    ) -> None:
        assert levels(self.INDEX.groups[0], required) == found

    @pytest.mark.parametrize(
        ("level", "found"),
        [
            ("rack", [{0, 1}, {2, 3}, {4, 5}]),
            ("block", [{0, 1, 2, 3}, {4, 5}]),
            ("node", [{n} for n in range(6)]),
            (None, [set(range(6))]),
        ],
    )
    def test_areas_are_the_open_nodes_of_each_domain(
        self, level: str | None, found: list[set[int]]
    ) -> None:
        assert [set(one) for one in areas(self.INDEX, self.INDEX.groups, level)] == found

    def test_one_kind_is_tried_before_a_pool_of_kinds(self) -> None:
        small, large = nodes(1, 2)[0], replace(nodes(1, 8)[0], id="w")
        index = SlotIndex((small, large, replace(large, id="q", pool="q")))
        job = queued(1, 1, 2, roles=(GangShape(1, 8, 8),))
        request = request_of(job)
        found = [
            [group.key.pool + str(group.size) for group in land]
            for land in lands(suitable(index, request), request)
        ]
        assert found == [["p8"], ["q8"], ["p2", "p8"]]
        on_node = replace(request, required="node")
        assert len(list(lands(suitable(index, on_node), on_node))) == 2

    def test_leaves_of_several_kinds_are_not_confused(self) -> None:
        index = SlotIndex((*nodes(4), replace(nodes(1, 8)[0], id="w")))
        assert [num_leaves(index, some) for some in ([0, 1], [0, 2, 3], [0, 4], [])] == [1, 2, 2, 0]


class TestOneShape:
    @pytest.mark.parametrize(
        ("taken", "count", "per_node", "required", "found"),
        [
            # One share: the fullest node with room, else one of the rack with the fewest whole nodes.
            ({}, 1, 2, None, ["n0"]),
            ({3: 2}, 1, 2, None, ["n3"]),
            ({3: 2, 4: 1}, 1, 1, None, ["n3"]),
            ({3: 2, 4: 1}, 1, 3, None, ["n4"]),
            ({3: 2}, 1, 4, None, ["n2"]),
            ({3: 2}, 1, 4, "node", ["n2"]),
            # Whole nodes: the rack with the least left over, then the block, then the fewest racks.
            ({}, 2, 4, None, ["n0", "n1"]),
            ({0: 1}, 2, 4, None, ["n2", "n3"]),
            ({0: 1, 2: 1, 4: 1, 6: 1}, 2, 4, None, ["n1", "n3"]),
            ({0: 1, 2: 1, 4: 1, 6: 1}, 2, 4, "block", ["n1", "n3"]),
            ({0: 1, 2: 1, 4: 1, 6: 1}, 2, 4, "rack", None),
            ({0: 1}, 3, 4, None, ["n2", "n3", "n1"]),
            ({}, 3, 4, None, ["n0", "n1", "n2"]),
            ({1: 4}, 3, 4, None, ["n2", "n3", "n0"]),
            ({1: 4, 3: 4}, 3, 4, None, ["n4", "n5", "n6"]),
            ({}, 5, 4, None, ["n0", "n1", "n2", "n3", "n4"]),
            ({}, 5, 4, "block", None),
            ({}, 8, 4, None, [f"n{i}" for i in range(8)]),
            ({0: 1}, 8, 4, None, None),
            # Parts of nodes: the rack with the fewest nodes that have room, least room first.
            ({0: 3, 2: 1}, 2, 2, None, ["n2", "n3"]),
            ({0: 3, 1: 1, 3: 3}, 1, 2, "rack", ["n1"]),
            ({1: 1}, 2, 3, None, ["n1", "n0"]),
            ({}, 2, 2, "node", None),
        ],
    )
    def test_the_narrowest_domain_and_there_the_best_fit(
        self,
        taken: dict[int, int],
        count: int,
        per_node: int,
        required: str | None,
        found: list[str] | None,
    ) -> None:
        index = index_of(in_blocks(8), taken)
        assert laid(index, queued(1, count, per_node, required=required)) == found

    @pytest.mark.parametrize(
        ("cpus", "memory", "found"),
        [(0, 0, ["n0"]), (2, 0, ["n0"]), (3, 0, ["n1"]), (9, 0, None), (0, 101, None)],
    )
    def test_cpus_and_memory_must_be_free_too(
        self, cpus: int, memory: int, found: list[str] | None
    ) -> None:
        index = index_of(nodes(2), {0: 1}, cpus=6)
        job = queued(1, 1, 2, cpus_per_node=cpus, memory_per_node_bytes=memory)
        assert laid(index, job) == found

    def test_shares_without_slots_need_only_cpus(self) -> None:
        index = index_of(nodes(2), {0: 4}, cpus=6)
        assert laid(index, queued(1, 1, 0, cpus_per_node=2)) == ["n0"]
        assert laid(index, queued(1, 1, 0, cpus_per_node=3)) == ["n1"]
        assert laid(index, queued(1, 2, 0, cpus_per_node=3)) is None

    def test_a_splittable_node_holds_several_shares(self) -> None:
        index = index_of(nodes(2, splittable=True), {0: 1})
        job = queued(1, 2, 2, required="node")
        request = request_of(job)
        found = place(index, request, suitable(index, request), job.shape)
        assert found == [Allocation(1, 0b0011), Allocation(1, 0b1100)]
        assert laid(index, queued(1, 3, 2)) == ["n0", "n1", "n1"]
        assert laid(index, queued(1, 4, 2)) is None
        # Its CPUs are shared by all its ranks, so that only one share's worth must be there.
        assert laid(index, queued(1, 2, 2, cpus_per_node=8)) == ["n0", "n1"]
        assert laid(index, queued(1, 2, 2, cpus_per_node=9)) is None

    def test_kinds_are_mixed_only_if_none_alone_will_do_and_within_a_pool(self) -> None:
        small = nodes(2)
        large = tuple(replace(one, id=f"w{i}") for i, one in enumerate(nodes(2, 8)))
        index = SlotIndex((*small, *large))
        assert laid(index, queued(1, 2, 4)) == ["n0", "n1"]
        assert laid(index, queued(1, 3, 4)) == ["n0", "n1", "w0"]
        assert laid(index, queued(1, 3, 4, required="rack")) is None
        assert laid(index, queued(1, 1, 9)) is None
        for facts in ({"pool": "q"}, {"slot_type": "H100"}):
            apart = SlotIndex((*small, *(replace(one, **facts) for one in large)))
            assert laid(apart, queued(1, 3, 4)) is None

    def test_two_parts_of_a_machine_have_its_cpus_together(self) -> None:
        halves = tuple(replace(one, host="m") for one in nodes(2))
        index = SlotIndex((*halves, *(replace(one, id="x") for one in nodes(3)[2:])))
        assert laid(index, queued(1, 2, 4, cpus_per_node=4)) == ["n0", "n1"]
        assert laid(index, queued(1, 2, 4, cpus_per_node=5)) == ["n0", "x"]
        assert laid(index, queued(1, 2, 4, memory_per_node_bytes=51)) == ["n0", "x"]


class TestRoles:
    HEAD = RoleShape(1, 0, 1, "head", 6, 10)

    def test_all_parts_go_to_one_rack_if_one_holds_them(self) -> None:
        index = index_of(in_blocks(8), {0: 1})
        job = queued(1, 1, 4, roles=(GangShape(1, 3, 3),))
        # Rack r0 has room for both, and less of it than the others.
        assert laid(index, job) == ["n1", "n0"]
        assert laid(index, replace(job, shape=GangShape(2, 4, 4))) == ["n1", "n2", "n0"]
        assert laid(index, replace(job, shape=GangShape(2, 4, 4), required="rack")) is None

    def test_a_role_takes_its_own_cpus(self) -> None:
        index = index_of(nodes(2), {0: 4}, cpus=4)
        job = queued(1, 1, 4, roles=(self.HEAD,), cpus_per_node=1)
        request = request_of(job)
        found = place(index, request, suitable(index, request), job.shape)
        assert found == [Allocation(1, 0b1111, 1, 0), Allocation(1, 0, 6, 10)]
        assert laid(index, replace(job, cpus_per_node=3)) is None

    def test_parts_of_several_kinds_lie_in_one_pool(self) -> None:
        small = nodes(1, 2, slot_type="L4")
        large = (replace(nodes(1, 8)[0], id="w", slot_type="H100"),)
        role = RoleShape(1, 2, 1, "head", slot_type="L4")
        job = queued(1, 1, 8, slot_type="H100", roles=(role,))
        assert laid(SlotIndex((*small, *large)), job) == ["w", "n0"]
        away = tuple(replace(one, pool="q") for one in small)
        assert laid(SlotIndex((*away, *large)), job) is None

    def test_a_gang_is_placed_on_exactly_these_nodes_or_not(self) -> None:
        index = index_of(nodes(3), {1: 2}, cpus=3)
        job = queued(1, 2, 2, roles=(RoleShape(1, 1, 1, "head", 5, 6),), cpus_per_node=2)
        request = request_of(job)
        found = place_on(index, request, job, [1, 0, 0])
        assert found == [
            Allocation(1, 0b1100, 2, 0),
            Allocation(0, 0b0011, 2, 0),
            Allocation(0, 0b0100, 5, 6),
        ]
        assert place_on(index, request, job, [0, 0, 0]) is None  # five slots of four
        assert place_on(index, request, job, [0, 1, 1]) is None  # three slots of two
        other = queued(1, 1, 2, cpus_per_node=6)
        assert place_on(index, request_of(other), other, [1]) is None


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([None, "rack", "block"]),
)
def test_a_gang_is_placed_if_and_only_if_a_domain_holds_it(
    taken: list[int], count: int, per_node: int, required: str | None
) -> None:
    some = in_blocks(8)
    index = index_of(some, dict(enumerate(taken)))
    found = laid(index, queued(1, count, per_node, required=required))
    rooms = [i for i in range(8) if 4 - taken[i] >= per_node]
    widths = {"rack": 2, "block": 4, None: 8}
    fits = [
        level
        for level, width in widths.items()
        if any(sum(i // width == domain for i in rooms) >= count for domain in range(8))
    ]
    allowed = [level for level in fits if level in levels(index.groups[0], required)]
    assert (found is not None) == bool(allowed)
    if found is not None:
        chosen = [int(name[1:]) for name in found]
        assert len(set(chosen)) == count and set(chosen) <= set(rooms)
        # One node alone lies in any domain; a gang lies in the narrowest that holds it.
        assert len({i // widths[allowed[0]] for i in chosen}) == 1


class TestEmptyCluster:
    def test_levels_on_which_the_nodes_of_a_pool_agree(self) -> None:
        first, second = nodes(2)
        flat = (replace(first, pool="q", domains=()), replace(second, pool="q", domains=()))
        assert narrowest_levels((first, second, *flat)) == {"p": "rack", "q": None}
        assert narrowest_levels((first, replace(second, domains=(("row", "x"),)))) == {"p": None}
        assert narrowest_levels(in_blocks(2)) == {"p": "rack"}

    @pytest.mark.skipif(empty_cluster.__file__.endswith(".so"), reason="compiled: calls are bound")
    def test_requests_are_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[object] = []

        def counted(index: SlotIndex, request: object) -> object:
            asked.append(request)
            return suitable(index, request)  # type: ignore[arg-type]

        monkeypatch.setattr("phalanx.core.scheduling.index.empty_cluster.suitable", counted)
        empty = EmptyCluster(nodes(2))
        jobs = (queued(1, 2, 4), queued(2, 2, 4, kind="k"), queued(3, 3, 4, min_nodes=2))
        assert [empty.can_hold(job) for job in jobs] == [True, True, True]
        assert len(asked) == 1
        assert not empty.can_hold(queued(4, 3, 4))
        assert len(asked) == 2
