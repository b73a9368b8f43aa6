"""Which running jobs a gang may preempt, one rule at a time, and the sums that follow from them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from phalanx.core.scheduling import ClusterIndex, PlannerConfig, PlanningInput, Project, RunningJob
from phalanx.core.scheduling.model.durations import History, KindKey
from phalanx.core.scheduling.model.entitlement import EntitlementTier
from phalanx.core.scheduling.search.candidate_set import (
    CandidateSet,
    PeerCandidates,
    PendingGang,
)
from phalanx.core.scheduling.search.candidates import (
    candidate_set,
    could_suffice,
    may_evict,
    ordered_candidate_set,
)
from phalanx.core.scheduling.search.victim_search import VictimSearch
from phalanx.core.scheduling.stages.entitlement import entitle
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 3600 * US
FULL = (0, 1, 2, 3)
SLOT_PRICE = 90.0  # thirty seconds of saving and sixty of a restart


def search_of(
    *held: RunningJob,
    projects: tuple[Project, ...] = (),
    config: PlannerConfig | None = None,
    history: History | None = None,
) -> VictimSearch:
    snapshot = PlanningInput(
        nodes(12),
        held,
        (),
        projects,
        history=History() if history is None else history,
        config=PlannerConfig() if config is None else config,
    )
    state = Pass(ClusterIndex.of(snapshot), NOW)
    entitle(state)
    return state.victims


def gang(
    urgency: float = 1.0,
    *,
    tier: EntitlementTier = EntitlementTier.SHARED,
    guarded: bool = False,
    slots: int = 4,
    **facts: object,
) -> PendingGang:
    """A gang whose urgency is certain unless the facts say otherwise."""
    job = queued(1, 1, slots, **{"remaining_s": 1.0, **facts})
    return PendingGang(job, tier, urgency, guarded)


def peer(num: int = 8, **facts: object) -> RunningJob:
    """A job of one slot that needs a thousand seconds more: its urgency is a thousandth."""
    return running(num, {num % 8: (0,)}, **{"remaining_s": 1000.0, **facts})


class TestOneProject:
    @pytest.mark.parametrize(
        ("facts", "may"),
        [
            ({}, True),
            ({"priority": 40}, True),
            ({"priority": 51}, False),
            ({"protected_until": NOW}, True),
            ({"protected_until": NOW + 1}, False),
            ({"protected_until": NOW + 1, "priority": 40}, False),
            ({"started_at": NOW - 2400 * US}, True),
            ({"started_at": NOW - 2399 * US}, False),
            ({"started_at": NOW - 2399 * US, "priority": 40}, True),
            ({"started_at": None}, False),
            ({"save_s": None}, False),
            ({"save_s": None, "priority": 40}, True),
            ({"save_s": None, "saved_at": NOW}, True),
            ({"save_s": None, "saved_at": NOW - 10_000}, True),  # a hundredth of a slot-second
            ({"save_s": None, "saved_at": NOW - 10_001}, False),
            ({"remaining_s": 2.5}, False),
            ({"remaining_s": 2.6}, True),
            ({"remaining_s": 2.5, "priority": 40}, True),
        ],
    )
    def test_a_running_job_is_a_candidate_or_not(self, facts: dict[str, object], may: bool) -> None:
        search, asked = search_of(peer(**facts)), gang()
        found = candidate_set(search, asked)
        assert found.prices == ({8: search.price(search.cluster.held[8])} if may else {})
        assert ordered_candidate_set(search, asked).prices == found.prices
        held = search.cluster.held[8]
        assert may_evict(search, asked, held, search.cluster.score_of(held, NOW)) is may

    @pytest.mark.parametrize(("guarded", "urgency"), [(False, 1e-8), (True, 1.0)])
    def test_a_script_that_cannot_resume_never_leaves_for_an_equal(
        self, guarded: bool, urgency: float
    ) -> None:
        asked = gang(urgency, guarded=guarded)
        for saved_at, may in ((NOW - 10 * US, True), (None, False)):
            one = peer(save_s=None, saved_at=saved_at, remaining_s=1e12)
            search = search_of(one)
            assert bool(candidate_set(search, asked).prices) is may
            assert bool(ordered_candidate_set(search, asked).prices) is may
            held = search.cluster.held[8]
            assert may_evict(search, asked, held, search.cluster.score_of(held, NOW)) is may

    @pytest.mark.parametrize("facts", [{"preemptible": False}, {"stopping": True}])
    def test_what_is_not_preemptible_is_none(self, facts: dict[str, object]) -> None:
        for priority in (50, 40):
            search = search_of(peer(priority=priority, **facts))
            assert candidate_set(search, gang()).prices == {}

    def test_a_gang_of_uncertain_urgency_must_outweigh_by_far(self) -> None:
        urgent, uncertain = gang(0.26), gang(0.26, remaining_s=None)
        least = replace(uncertain, urgency=0.2526)  # a thousandth × 2.5 × (1 + 100)
        assert candidate_set(search_of(peer()), urgent).prices
        assert candidate_set(search_of(peer()), least).prices
        assert not candidate_set(search_of(peer()), replace(least, urgency=0.2524)).prices
        limited = replace(least, urgency=0.0026, job=replace(least.job, max_duration_s=9.0))
        assert candidate_set(search_of(peer()), limited).prices
        history = History()
        for _ in range(99):
            history.observe(KindKey("", "", 0), 60.0)
        known = replace(least, urgency=0.0051)  # × (1 + 100 / 100) only
        assert candidate_set(search_of(peer(), history=history), known).prices

    @pytest.mark.parametrize(("days", "may"), [(0.0, True), (3.5, True), (3.51, False)])
    def test_a_starving_gang_takes_peers_that_have_not_starved_themselves(
        self, days: float, may: bool
    ) -> None:
        search = search_of(peer(delayed_s=days * 86_400.0, remaining_s=1.0))
        asked = gang(1e-9, guarded=True)
        assert bool(candidate_set(search, asked).prices) is may
        assert bool(ordered_candidate_set(search, asked).prices) is may

    def test_infinite_hysteresis_spares_peers_and_not_lower_priorities(self) -> None:
        config = PlannerConfig(hysteresis=math.inf)
        search = search_of(peer(8), peer(9, priority=40), config=config)
        assert list(candidate_set(search, gang()).prices) == [9]

    def test_a_large_job_is_preempted_by_higher_priorities_only(self) -> None:
        config = PlannerConfig(large_job_slots=2, large_job_fraction=0.0)
        held = (
            running(8, {0: (0, 1, 2)}, remaining_s=1000.0),
            running(9, {1: (0, 1)}, remaining_s=1000.0),
            running(10, {2: (0, 1, 2)}, priority=40),
        )
        search = search_of(*held, config=config)
        assert sorted(candidate_set(search, gang()).prices) == [9, 10]
        assert not may_evict(search, gang(), held[0], 1e-6)

    def test_a_gang_may_lose_others_a_part_of_the_work_that_it_needs(self) -> None:
        config = PlannerConfig(size_exponent=0.5)
        assert gang(0.5).need_slot_s(config) == 2 / 0.5
        # What its wait has added says nothing about its work.
        assert replace(gang(0.5), base=0.25).need_slot_s(config) == 2 / 0.25
        assert gang(0.5).need_slot_s(replace(config, size_exponent=0.0)) == 4 / 0.5


class TestEnough:
    HELD = (peer(8), peer(9, remaining_s=1.5), running(10, {2: (0, 1)}, priority=40))

    @pytest.mark.parametrize(
        ("slots", "free", "may"), [(3, 0, True), (4, 0, False), (4, 1, True), (5, 1, False)]
    )
    def test_candidates_and_free_slots_must_be_enough_together(
        self, slots: int, free: int, may: bool
    ) -> None:
        # One peer is outweighed, the other is not; the job of lower priority has two slots.
        assert could_suffice(search_of(*self.HELD), gang(slots=slots), free) is may

    def test_with_large_jobs_or_projects_only_a_search_tells(self) -> None:
        config = PlannerConfig(large_job_slots=1, large_job_fraction=0.0)
        large = running(11, {3: (0, 1)}, remaining_s=1e6)
        assert could_suffice(search_of(*self.HELD, large, config=config), gang(slots=9), 0)
        search = search_of(*self.HELD, projects=(Project("a"),))
        assert could_suffice(search, gang(slots=99), 0)


class TestProjects:
    A = Project("a", guaranteed_slots=8)
    B = Project("b", guaranteed_slots=4)

    def held(self, **facts: object) -> tuple[RunningJob, ...]:
        """Twelve slots of project b: eight beyond its guarantee."""
        return tuple(
            running(num, {num % 8: FULL}, project="b", remaining_s=1e4, **facts)
            for num in (8, 9, 10)
        )

    def found(self, search: VictimSearch, asked: PendingGang) -> list[int]:
        return sorted(candidate_set(search, asked).prices)

    def test_a_guaranteed_request_reclaims_what_others_borrowed_whatever_its_priority(self) -> None:
        search = search_of(*self.held(priority=99), projects=(self.A, self.B))
        sure = gang(1e-9, tier=EntitlementTier.GUARANTEED, project="a")
        assert self.found(search, sure) == [8, 9]
        assert self.found(search, replace(sure, tier=EntitlementTier.SHARED)) == []

    def test_the_cheapest_jobs_are_the_excess(self) -> None:
        first, *others = self.held()
        search = search_of(replace(first, restart_s=61.0), *others, projects=(self.A, self.B))
        asked = gang(1e-9, tier=EntitlementTier.GUARANTEED, project="a")
        assert self.found(search, asked) == [9, 10]
        # It is cheap or dear by the slot.
        part = replace(running(8, {0: (0,)}, project="b"), restart_s=61.0)
        mixed = search_of(part, *others, projects=(self.A, self.B))
        assert self.found(mixed, asked) == [9, 10]
        # One of them leaves: the other four slots are still beyond the guarantee.
        search.leave(9)
        assert self.found(search, asked) == [10]
        search.leave(10)
        assert self.found(search, asked) == []

    @pytest.mark.parametrize(
        ("urgency", "priority", "found"), [(1.0, 50, [8, 9]), (1e-9, 50, []), (1e-9, 60, [8, 9])]
    )
    def test_beyond_guarantees_borrowed_slots_are_won_as_among_peers(
        self, urgency: float, priority: int, found: list[int]
    ) -> None:
        search = search_of(*self.held(), projects=(self.A, self.B))
        job = queued(1, 1, 4, priority, project="a", remaining_s=1.0)
        assert (
            self.found(search, PendingGang(job, EntitlementTier.BORROWED, urgency, False)) == found
        )

    def test_within_a_project_only_priority_and_urgency_count(self) -> None:
        search = search_of(*self.held(), projects=(self.A, self.B))
        sure = gang(1e-9, tier=EntitlementTier.GUARANTEED, project="b")
        assert self.found(search, sure) == []
        assert self.found(search, replace(sure, urgency=1.0)) == [8, 9, 10]

    def test_a_use_within_the_guarantee_is_safe(self) -> None:
        rich = replace(self.B, guaranteed_slots=12)
        search = search_of(*self.held(priority=10), projects=(self.A, rich))
        assert self.found(search, gang(tier=EntitlementTier.GUARANTEED, project="a")) == []

    def test_a_part_takes_from_the_use_of_its_parent_and_from_the_excess_of_its_siblings(
        self,
    ) -> None:
        tree = (
            Project("lab", guaranteed_slots=99),
            Project("mine", guaranteed_slots=8, parent="lab"),
            Project("other", guaranteed_slots=4, parent="lab"),
        )
        held = (
            running(8, {0: FULL}, project="lab"),
            running(9, {1: FULL}, project="other"),
            running(10, {2: FULL}, project="other"),
        )
        search = search_of(*held, projects=tree)
        asked = gang(1e-9, tier=EntitlementTier.GUARANTEED, project="mine")
        assert self.found(search, asked) == [8, 9]
        # The parent's guarantee is theirs together and gives none of them a right.
        poor = search_of(*held, projects=(tree[0], replace(tree[1], guaranteed_slots=3), tree[2]))
        assert self.found(poor, asked) == []

    def test_the_excess_of_a_parent_is_its_own_use_and_the_excess_of_its_parts(self) -> None:
        tree = (
            self.A,
            Project("lab", guaranteed_slots=4),
            Project("safe", guaranteed_slots=4, parent="lab"),
            Project("loose", parent="lab"),
        )
        held = (
            running(8, {0: FULL}, project="lab"),
            running(9, {1: FULL}, project="safe"),
            running(10, {2: FULL}, project="loose"),
        )
        asked = gang(1e-9, tier=EntitlementTier.GUARANTEED, project="a")
        assert self.found(search_of(*held, projects=tree), asked) == [8, 10]
        richer = (tree[0], replace(tree[1], guaranteed_slots=8), *tree[2:])
        assert self.found(search_of(*held, projects=richer), asked) == [8]

    def test_slots_of_a_name_without_a_project_are_borrowed(self) -> None:
        search = search_of(running(8, {0: FULL}, project="stranger"), projects=(self.A,))
        asked = gang(1e-9, tier=EntitlementTier.GUARANTEED, project="a")
        assert self.found(search, asked) == [8]


class TestSums:
    def test_a_candidate_set_counts_by_node(self) -> None:
        cluster = search_of(
            running(8, {0: (0, 1), 1: (0,)}), running(9, {1: (1, 2, 3)}), running(10, {2: (0,)})
        ).cluster
        found = CandidateSet()
        for num, cost in ((8, 5.0), (9, 7.0), (8, 99.0)):
            found.add(cluster, num, cost)
        assert found == CandidateSet({8: 5.0, 9: 7.0}, {0: 2, 1: 4}, {0: 5.0, 1: 12.0}, 6)
        more = found.with_more(cluster, {10: 1.0})
        assert more.slots == {0: 2, 1: 4, 2: 1} and more.num_slots == 7
        found.remove(cluster, 9)
        found.remove(cluster, 9)
        assert found == CandidateSet({8: 5.0}, {0: 2, 1: 1}, {0: 5.0, 1: 5.0}, 3)
        assert more.prices == {8: 5.0, 9: 7.0, 10: 1.0}

    @pytest.mark.parametrize(
        ("urgency", "guarded", "num"),
        [(1.4, False, 0), (3.0, False, 1), (3.1, False, 2), (0.0, True, 3)],
    )
    def test_peers_below_a_gang_are_those_of_less_than_its_urgency(
        self, urgency: float, guarded: bool, num: int
    ) -> None:
        peers = PeerCandidates([(1.0, 8, 0.0), (2.0, 9, 0.0), (7.0, 10, 0.0)], [0, 1, 2, 3])
        assert peers.num_below(gang(urgency, guarded=guarded), 1.5) == num
        assert peers.rank == {8: 0, 9: 1, 10: 2}

    def test_a_price_is_asked_once_and_a_job_that_leaves_counts_no_more(self) -> None:
        held = (peer(8, priority=40, project="a"), peer(9, priority=40, project="a"))
        search = search_of(*held)
        assert candidate_set(search, gang()).prices == {8: SLOT_PRICE, 9: SLOT_PRICE}
        assert search.price(replace(held[0], save_s=900.0)) == SLOT_PRICE
        used, version = dict(search.ledger.used), search.ledger.version
        search.leave(8)
        assert (used, search.ledger.used) == ({"a": 2}, {"a": 1})
        assert (search.ledger.num_jobs, search.ledger.version) == ({"a": -1}, version + 1)
        assert search.decisions.leaving == {8}
        assert candidate_set(search, gang()).prices == {9: SLOT_PRICE}
        assert search.below[50].num_slots == 1
