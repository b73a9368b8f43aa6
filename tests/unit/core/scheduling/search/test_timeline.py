"""The search over a shared timeline answers as one that reads all openings anew, in as many steps."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement
from phalanx.core.scheduling import ClusterIndex, QueuedJob, RunningJob
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.search.decisions import Decisions
from phalanx.core.scheduling.search.openings import OpeningSearch

NOW = 10_000 * US
_LEVELS = ("block", "rack")
Found = tuple[int, list[int]] | None


def _cluster(rng: random.Random) -> ClusterIndex:
    """A cluster of two sizes of nodes in racks and blocks, with jobs of which some ends are unknown."""
    nodes = [
        Node(
            f"n{at}",
            "p",
            "",
            rng.choice([4, 4, 8]),
            64,
            1 << 40,
            domains=(("block", f"b{at % 12 // 6}"), ("rack", f"r{at % 12 // 3}")),
            closed="" if rng.random() < 0.9 else "being drained",
        )
        for at in range(rng.randint(8, 40))
    ]
    cluster = ClusterIndex(nodes)
    num = 100
    for node in nodes:
        slots = list(range(node.num_slots))
        while slots and rng.random() < 0.8:
            width = min(rng.choice([1, 2, 4]), len(slots))
            mine, slots = tuple(slots[:width]), slots[width:]
            left_s = rng.choice([None, 10.0, 20.0, 20.0, 400.0])
            share = NodeShare(node.id, "", mine)
            cluster.hold(
                RunningJob(num, Placement("p", (share,)), started_at=0, remaining_s=left_s)
            )
            num += 1
    return cluster


class _Anew:
    """The rule in its plain form: all openings from the first one on, for every gang."""

    def __init__(self, cluster: ClusterIndex, group: NodeGroup, need: int) -> None:
        self.cluster, self.group, self.need, self.num_steps = cluster, group, need, 0
        self.began = len(cluster.index.journal)
        self.read: list[tuple[int, int]] = []
        self.more = self._openings(list(cluster.index.num_free))

    def _openings(self, free: list[int]) -> Iterator[tuple[int, int]]:
        inside = {node for bucket in self.group.by_free for node in bucket}
        for count in range(self.need, self.group.size + 1):
            yield from ((NOW, n) for n in sorted(inside) if free[n] == count)
        for at, num in self.cluster.running.ends(NOW):
            self.num_steps += 1
            for node in self.cluster.nodes_of[num]:
                before = free[node]
                free[node] += self.cluster.on_node[node][num]
                if node in inside and before < self.need <= free[node]:
                    yield at, node

    def first_full(self, depth: int, num: int) -> Found:
        index = self.cluster.index
        gone = {one.node for _, one in index.journal[self.began :]}
        rooms: dict[object, list[int]] = {}
        full_at, full, turn = NEVER, list[object](), 0
        while True:
            if turn == len(self.read):
                one = next(self.more, None)
                if one is None:
                    break
                self.read.append(one)
            at, node = self.read[turn]
            turn += 1
            if node in gone:
                continue
            if full and at > full_at:
                break
            leaf = index.leaf_of[node]
            path = (self.group.leaves[leaf][0], leaf, node)
            domain = "" if depth < 0 else path[depth]
            here = rooms.setdefault(domain, [])
            here.append(node)
            if len(here) == num:
                full_at = at
                full.append(domain)
        return (full_at, rooms[min(full)][:num]) if full else None  # type: ignore[type-var]


@pytest.mark.parametrize("seed", range(24))
def test_a_shared_timeline_answers_as_one_read_anew(seed: int) -> None:
    rng = random.Random(seed)
    cluster = _cluster(rng)
    decisions = Decisions()
    search = OpeningSearch(cluster, NOW, decisions)
    group, need = rng.choice(cluster.index.groups), rng.choice([1, 2, 4])
    line, anew = search.timeline(group, need), _Anew(cluster, group, need)
    mark = cluster.index.mark()
    for turn in range(12):
        depth, num = rng.randint(-1, len(_LEVELS)), rng.choice([1, 1, 2, 3, 5, 9])
        assert line.first_full(depth, num) == anew.first_full(depth, num)
        assert decisions.num_steps == anew.num_steps
        node = rng.randrange(len(cluster.index.nodes))
        if turn == 6:
            cluster.index.rollback(mark)
        if rng.random() < 0.5 and cluster.index.free[node]:
            cluster.index.take(Allocation(node, cluster.index.free[node]))


def test_the_soonest_nodes_of_a_gang_are_those_of_the_narrowest_level_that_suffices() -> None:
    cluster = _cluster(random.Random(1))
    job = QueuedJob(1, GangShape(2, 4, 1), 50, NOW)
    cluster.submit(job)
    search = OpeningSearch(cluster, NOW, Decisions())
    found = search.soonest(cluster.class_of[1], job)
    assert found is not None
    racks = {cluster.index.nodes[node].domains[1] for node in found[1]}
    assert len(found[1]) == 2 and len(racks) == 1
