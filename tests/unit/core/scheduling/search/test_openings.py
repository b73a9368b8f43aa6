"""When a blocked gang finds room, and where: known ends first, narrow domains first, nothing guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node, RoleShape
from phalanx.core.scheduling import ClusterIndex, PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.search.openings import OpeningSearch, SlotTimeline
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, placed, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 100 * US
FULL = (0, 1, 2, 3)


def in_blocks(num: int, size: int = 4, **more: object) -> tuple[Node, ...]:
    """Nodes in racks of two, and racks in blocks of two."""
    return tuple(
        replace(one, domains=(("block", f"b{i // 4}"), *one.domains))
        for i, one in enumerate(nodes(num, size, **more))
    )


def busy(*ends_s: float | None) -> tuple[RunningJob, ...]:
    """A job on every node that ends after so many seconds; None: at an unknown time, 0.0: a free node."""
    return tuple(
        running(10 + node, {node: FULL}, remaining_s=end_s)
        for node, end_s in enumerate(ends_s)
        if end_s != 0.0
    )


def search_of(
    some: tuple[Node, ...], held: tuple[RunningJob, ...], *waiting: QueuedJob
) -> OpeningSearch:
    return Pass(ClusterIndex.of(PlanningInput(some, held, waiting)), NOW).openings


def soonest(search: OpeningSearch, num: int = 1) -> tuple[float | None, list[int]] | None:
    """Seconds from now, or None if unknown, and the nodes."""
    found = search.soonest(search.cluster.class_of[num], search.cluster.waiting[num])
    if found is None:
        return None
    return (None if found[0] == NEVER else (found[0] - NOW) / US, found[1])


class TestOneShape:
    @pytest.mark.parametrize(
        ("ends_s", "count", "required", "found"),
        [
            # The first rack that is free, not the first two nodes.
            ((10, 50, 20, 30, 99, 99, 99, 99), 2, None, (30, [2, 3])),
            ((10, 50, 20, 30, 99, 99, 99, 99), 1, None, (10, [0])),
            # A rack is too small for three: a block, in the order in which its nodes become free.
            ((10, 50, 20, 30, 5, 6, 99, 99), 3, None, (30, [0, 2, 3])),
            ((10, 50, 20, 30, 5, 6, 99, 99), 3, "block", (30, [0, 2, 3])),
            ((10, 50, 20, 30, 5, 6, 99, 99), 5, None, (30, [4, 5, 0, 2, 3])),
            ((10, 50, 20, 30, 5, 6, 99, 99), 3, "rack", None),
            ((10, 50, 20, 30, 5, 6, 99, 99), 5, "block", None),
            ((10, 50, 20, 30, 5, 6, 99, 99), 9, None, None),
            # Free nodes are there at once.
            ((50, 0.0, 20, 30, 99, 99, 99, 99), 2, None, (30, [2, 3])),
            ((25, 0.0, 20, 30, 99, 99, 99, 99), 2, None, (25, [1, 0])),
            # Of racks that are free at the same time, the first.
            ((30, 20, 30, 10, 99, 99, 99, 99), 2, None, (30, [1, 0])),
            # An unknown end in every rack: a wider domain whose time is known.
            ((10, None, None, 30, None, None, None, 5), 2, None, (30, [0, 3])),
            ((10, None, None, 30, None, None, None, 5), 2, "rack", (None, [0, 1])),
            ((None,) * 8, 2, None, (None, [0, 1])),
            ((10, None, None, 30, None, None, None, 5), 3, None, (30, [7, 0, 3])),
            ((10, None, None, 30, None, None, None, 5), 4, None, (None, [0, 3, 1, 2])),
        ],
    )
    def test_the_narrowest_domain_that_is_free_at_a_known_time(
        self,
        ends_s: tuple[float | None, ...],
        count: int,
        required: str | None,
        found: tuple[float | None, list[int]] | None,
    ) -> None:
        job = queued(1, count, 4, required=required)
        assert soonest(search_of(in_blocks(8), busy(*ends_s), job)) == found

    def test_slots_of_a_node_add_up(self) -> None:
        held = (
            running(8, {0: (0, 1)}, remaining_s=10.0),
            running(9, {0: (2,)}, remaining_s=20.0),
            running(10, {0: (3,)}, remaining_s=5.0),
        )
        for need, end_s in ((1, 5), (2, 10), (3, 10), (4, 20)):
            assert soonest(search_of(nodes(1), held, queued(1, 1, need))) == (end_s, [0])

    def test_the_kind_of_node_that_is_free_first(self) -> None:
        some = (*nodes(1, 8), replace(nodes(2)[1], num_slots=4))
        held = (
            running(8, {0: tuple(range(8))}, remaining_s=10.0),
            running(9, {1: FULL}, remaining_s=20.0),
        )
        assert soonest(search_of(some, held, queued(1, 1, 4))) == (10, [0])
        later = (replace(held[0], remaining_s=30.0), held[1])
        assert soonest(search_of(some, later, queued(1, 1, 4))) == (20, [1])
        equal = (replace(held[0], remaining_s=20.0), held[1])
        assert soonest(search_of(some, equal, queued(1, 1, 4))) == (20, [1])

    def test_closed_nodes_never_open(self) -> None:
        shut = tuple(replace(one, closed="drained") for one in nodes(2))
        assert soonest(search_of(shut, busy(10.0), queued(1, 1, 4))) is None

    def test_a_splittable_node_opens_share_by_share(self) -> None:
        held = (
            running(8, {0: (0,)}, remaining_s=10.0),
            running(9, {0: (1,)}, remaining_s=20.0),
            running(10, {0: (2, 3)}, remaining_s=30.0),
        )
        some = nodes(1, splittable=True)
        assert soonest(search_of(some, held, queued(1, 1, 2))) == (20, [0])
        assert soonest(search_of(some, held, queued(1, 2, 2))) == (30, [0, 0])
        assert soonest(search_of(some, held, queued(1, 2, 2, required="node"))) == (30, [0, 0])
        assert soonest(search_of(some, held, queued(1, 3, 2))) is None


def _read(line: SlotTimeline) -> list[tuple[int, int, int]]:
    """All openings of a timeline but those on nodes that the pass has used."""
    while line.extend():
        pass
    left_out = line.left_out()
    return [one for one in line.found if one[1] not in left_out]


class TestMemo:
    def test_a_timeline_is_read_once_and_leaves_out_what_the_pass_has_taken(self) -> None:
        search = search_of(nodes(4), busy(10.0, 20.0, 30.0, 0.0), queued(1, 1, 4))
        (group,) = search.index.groups
        line = search.timeline(group, 4)
        assert search.timeline(group, 4) is line
        assert search.timeline(group, 3) is not line
        every = [(0, 3, 1), (10, 0, 1), (20, 1, 1), (30, 2, 1)]
        assert [((at - NOW) / US, node, shares) for at, node, shares in _read(line)] == every
        steps = search.decisions.num_steps
        mark = search.index.mark()
        search.index.take(Allocation(3, 0b0001))
        assert [node for _, node, _ in _read(line)] == [0, 1, 2]
        assert soonest(search) == (10, [0])
        search.index.rollback(mark)
        assert [node for _, node, _ in _read(line)] == [3, 0, 1, 2]
        assert search.decisions.num_steps == steps

    def test_a_timeline_is_read_only_as_far_as_it_is_needed(self) -> None:
        search = search_of(nodes(4), busy(10.0, 20.0, 30.0, 40.0), queued(1, 1, 4))
        assert soonest(search) == (10, [0])
        # One more than the first, to know that nothing else opens at the same time.
        assert search.decisions.num_steps == 2

    def test_ends_are_asked_once(self) -> None:
        search = search_of(nodes(2), busy(20.0, 10.0))
        assert search.ends() is search.ends()
        assert search.ends() == [(NOW + 10 * US, 11), (NOW + 20 * US, 10)]


class TestRoles:
    JOB = queued(1, 1, 4, roles=(GangShape(1, 2, 2),))

    @pytest.mark.parametrize(
        ("ends_s", "found"),
        [
            ((10.0, 30.0, 20.0, 40.0), (20, [0, 2])),
            ((0.0, 30.0, 40.0, 50.0), (30, [0, 1])),
            ((0.0, 0.0, 40.0, 50.0), (0, [0, 1])),
            ((10.0, None, None, None), (None, [0, 1])),
        ],
    )
    def test_the_first_end_after_which_all_parts_find_room(
        self, ends_s: tuple[float | None, ...], found: tuple[float | None, list[int]]
    ) -> None:
        search = search_of(nodes(4), busy(*ends_s), self.JOB)
        before = search.index.state()
        assert soonest(search) == found
        assert search.index.state() == before

    def test_a_gang_that_never_fits_has_no_opening(self) -> None:
        job = replace(self.JOB, roles=(RoleShape(1, 0, 1, "head", 99),))
        assert soonest(search_of(nodes(4), busy(10.0), job)) is None

    def test_cpus_of_the_roles_of_others_are_given_back(self) -> None:
        head = RoleShape(1, 0, 1, "head", 8)
        where = placed({0: (0,), 1: ()})
        held = running(8, {}, remaining_s=10.0, cpus_per_node=1)
        held = replace(held, placement=where, roles=(head,))
        search = search_of(nodes(2), (held,), queued(1, 1, 3, roles=(head,)))
        assert soonest(search) == (10, [0, 0])
