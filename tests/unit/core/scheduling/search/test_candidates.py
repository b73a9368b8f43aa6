"""A reach that is kept from claim to claim is the one that would be built anew for each."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scheduling import ClusterIndex, PlannerConfig, QueuedJob, RunningJob
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.search.candidates import (
    CandidateSet,
    IncrementalCandidateSet,
    candidate_set,
    ordered_candidate_set,
)
from phalanx.core.scheduling.stages.entitlement import EntitlementTier
from phalanx.core.scheduling.stages.scheduling_pass import Pass, PendingGang

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 40_000 * US


def crowded(rng: random.Random) -> ClusterIndex:
    """Forty nodes full of jobs of two priorities; some stand on two nodes, some saved just now."""
    nodes = [
        Node(f"n{i}", "main", "h", 4, 8, 64, domains=(("rack", f"r{i // 4}"),)) for i in range(40)
    ]
    cluster = ClusterIndex(nodes, config=PlannerConfig(step_budget=10**9, lost_per_need=1e9))
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


def claims(rng: random.Random) -> list[PendingGang]:
    asked = QueuedJob(1000, GangShape(2, 4, 1), 50, NOW)
    urgencies = [rng.uniform(0.0, 0.02) for _ in range(6)] + [1e-9, 1.0]
    return [PendingGang(asked, EntitlementTier.SHARED, urgency, False) for urgency in urgencies]


def same_reach(cluster: ClusterIndex, kept: CandidateSet, anew: CandidateSet) -> bool:
    """Prices, slots and costs to the last digit, and the nodes in the same order, turn by turn."""
    in_turn = dict.fromkeys(node for node in kept.in_turn(cluster) if node in kept.slots)
    return (
        kept.prices == anew.prices
        and kept.slots == anew.slots
        and kept.costs == anew.costs
        and kept.num_slots == anew.num_slots
        and list(in_turn) == list(anew.slots)
    )


def walk(seed: int, leave: Callable[[Pass, int], None]) -> list[bool]:
    """Claim after claim, of whose victims one leaves each time; whether the reach was right each time."""
    rng = random.Random(seed)
    cluster = crowded(rng)
    state = Pass(cluster, NOW, {}, {})
    right = []
    for gang in claims(rng):
        kept = candidate_set(state, gang)
        assert isinstance(kept, IncrementalCandidateSet)
        right.append(same_reach(cluster, kept, ordered_candidate_set(state, gang)))
        if kept.prices:
            leave(state, rng.choice(sorted(kept.prices)))
    return right


@pytest.mark.parametrize("seed", range(25))
def test_a_reach_kept_from_claim_to_claim_is_the_one_built_anew(seed: int) -> None:
    assert all(walk(seed, Pass.leaves))


def test_without_word_of_who_leaves_it_would_be_another() -> None:
    def unnoticed(state: Pass, num: int) -> None:
        stretches, state.stretches = state.stretches, {}
        state.leaves(num)
        state.stretches = stretches
        for stretch in stretches.values():
            stretch.num_left += 1

    assert not all(walk(1, unnoticed))
