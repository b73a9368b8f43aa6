"""An incremental candidate set always equals the one that would be built anew for each gang."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import ClusterIndex, PlannerConfig, QueuedJob, RunningJob
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.model.entitlement import EntitlementTier
from phalanx.core.scheduling.search.candidate_set import (
    CandidateSet,
    IncrementalCandidateSet,
    PendingGang,
)
from phalanx.core.scheduling.search.candidates import candidate_set, ordered_candidate_set
from phalanx.core.scheduling.search.victim_search import VictimSearch
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 40_000 * US


def crowded(rng: random.Random) -> ClusterIndex:
    """Forty nodes full of jobs of two priorities; some stand on two nodes, some saved just now."""
    cluster = ClusterIndex(
        nodes(40, rack=4), config=PlannerConfig(step_budget=10**9, lost_per_need=1e9)
    )
    for num in range(1, 90):
        width = rng.choice([1, 1, 2, 3])
        homes = [i for i, mask in enumerate(cluster.index.free) if mask.bit_count() >= width]
        chosen = rng.sample(homes, min(len(homes), rng.choice([1, 1, 2])))
        if not chosen:
            break
        allocations = [
            Allocation(
                i, sum(sorted(1 << s for s in range(4) if cluster.index.free[i] >> s & 1)[:width])
            )
            for i in chosen
        ]
        cluster.hold(
            RunningJob(
                num,
                cluster.index.placement(allocations),
                priority=rng.choice([40, 50, 50]),
                kind=f"k{num % 5}",
                started_at=NOW - rng.randrange(400, 30_000) * US,
                save_s=rng.choice([30.0, 7.3]),
            )
        )
    return cluster


def gangs(rng: random.Random) -> list[PendingGang]:
    asked = QueuedJob(1000, GangShape(2, 4, 1), 50, NOW)
    urgencies = [rng.uniform(0.0, 0.02) for _ in range(6)] + [1e-9, 1.0]
    return [PendingGang(asked, EntitlementTier.SHARED, urgency, False) for urgency in urgencies]


def same_candidates(cluster: ClusterIndex, kept: CandidateSet, anew: CandidateSet) -> bool:
    """Prices, slots and costs to the last digit, and the nodes in the same order, turn by turn."""
    in_turn = dict.fromkeys(node for node in kept.in_turn(cluster) if node in kept.slots)
    return (
        kept.prices == anew.prices
        and kept.slots == anew.slots
        and kept.costs == anew.costs
        and kept.num_slots == anew.num_slots
        and list(in_turn) == list(anew.slots)
    )


def walk(seed: int, leave: Callable[[VictimSearch, int], None]) -> list[bool]:
    """Search for gang after gang, with a victim leaving each time; whether the set was right each time."""
    rng = random.Random(seed)
    cluster = crowded(rng)
    search = Pass(cluster, NOW).victims
    right = []
    for gang in gangs(rng):
        kept = candidate_set(search, gang)
        assert isinstance(kept, IncrementalCandidateSet)
        right.append(same_candidates(cluster, kept, ordered_candidate_set(search, gang)))
        if kept.prices:
            leave(search, rng.choice(sorted(kept.prices)))
    return right


@pytest.mark.parametrize("seed", range(25))
def test_an_incremental_set_equals_one_built_anew(seed: int) -> None:
    assert all(walk(seed, VictimSearch.leave))


def test_a_set_that_misses_a_departure_differs() -> None:
    def unnoticed(search: VictimSearch, num: int) -> None:
        kept, search.incremental = search.incremental, {}
        search.leave(num)
        search.incremental = kept
        for one in kept.values():
            one.num_left += 1

    assert not all(walk(1, unnoticed))
