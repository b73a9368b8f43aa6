"""The ledger of a pass: tiers and ranks of queued jobs, limits, and use that counts up the tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    PlanningInput,
    Preemption,
    Project,
    QueuedJob,
    Reservation,
    Resize,
    RunningJob,
    Start,
)
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.entitlement import EntitlementTier, QuotaLimit
from phalanx.core.scheduling.model.outcome import PendingReasons
from phalanx.core.scheduling.model.urgency import aged
from phalanx.core.scheduling.search.decisions import Decisions
from phalanx.core.scheduling.search.ledger import Ledger
from phalanx.core.scheduling.stages.entitlement import entitle
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, placed, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
DAY = 86_400 * US
LAB = Project("lab", guaranteed_slots=4, max_slots=20)
PART = Project("part", guaranteed_slots=2, parent="lab")
FREE = Project("free")


def ledger_of(
    *waiting: QueuedJob,
    held: tuple[RunningJob, ...] = (),
    projects: tuple[Project, ...] = (),
    config: PlannerConfig | None = None,
    history: History | None = None,
    now: int = 0,
    num_nodes: int = 4,
) -> Ledger:
    """The ledger of a pass at its beginning."""
    snapshot = PlanningInput(
        nodes(num_nodes),
        held,
        waiting,
        projects,
        history=History() if history is None else history,
        config=PlannerConfig() if config is None else config,
    )
    cluster = ClusterIndex.of(snapshot)
    cluster.advance(now)
    state = Pass(cluster, now)
    entitle(state)
    return state.ledger


class TestTiers:
    @pytest.mark.parametrize(
        ("job", "tier"),
        [
            (queued(1, 1, 2, project="part"), EntitlementTier.GUARANTEED),
            (queued(1, 1, 4, project="part"), EntitlementTier.GUARANTEED),
            (queued(1, 2, 4, project="part"), EntitlementTier.SHARED),
            (queued(1, 5, 4, project="part"), EntitlementTier.BORROWED),
            (queued(1, 9, 4, project="stranger"), EntitlementTier.SHARED),
            (queued(1, 2, 4, 90, project="part"), EntitlementTier.URGENT),
            (queued(1, 2, 4, 89, project="part"), EntitlementTier.SHARED),
        ],
    )
    def test_a_job_is_in_a_tier_by_the_share_of_its_project(
        self, job: QueuedJob, tier: EntitlementTier
    ) -> None:
        config = PlannerConfig(urgent_priority=90)
        ledger = ledger_of(job, projects=(LAB, PART, FREE), config=config)
        assert ledger.tier(job) is tier

    def test_use_within_a_pass_lowers_the_tier(self) -> None:
        job = queued(1, 1, 4, project="part")
        ledger = ledger_of(job, queued(2, 9, 4, project="part"), projects=(LAB, PART, FREE))
        tiers = []
        for _ in range(5):
            tiers.append(ledger.fair_share_key(job))
            ledger.use("part", 4, 1)
        assert tiers == [
            (EntitlementTier.GUARANTEED, ()),
            (EntitlementTier.SHARED, (0, 2)),
            (EntitlementTier.SHARED, (4, 6)),
            (EntitlementTier.SHARED, (8, 10)),
            (EntitlementTier.BORROWED, (12, 14)),
        ]

    def test_without_projects_all_are_equal(self) -> None:
        job = queued(1, 1, 4, project="part")
        assert ledger_of(job).fair_share_key(job) == (EntitlementTier.SHARED, ())


class TestUse:
    def test_it_counts_for_all_projects_above(self) -> None:
        held = (running(8, {0: (0, 1, 2)}, project="part"), running(9, {1: (0,)}, project="free"))
        ledger = ledger_of(held=held, projects=(LAB, PART, FREE))
        assert ledger.used == {"part": 3, "lab": 3, "free": 1}
        ledger.use("part", 4, 1)
        ledger.use("lab", 2, 1)
        ledger.use("stranger", 5, 2)
        ledger.use("free", -1, -1)
        assert ledger.used == {"part": 7, "lab": 9, "free": 0, "stranger": 5}
        assert ledger.num_jobs == {"part": 1, "lab": 2, "stranger": 2, "free": -1}
        assert ledger.version == 4

    def test_a_limit_above_keeps_a_job_out_as_soon_as_it_is_reached(self) -> None:
        job = queued(1, 2, 4, project="part")
        ledger = ledger_of(job, projects=(LAB, PART, FREE))
        ledger.use("lab", 12, 1)
        assert ledger.over_limit(job) is None
        ledger.use("part", 1, 1)
        assert ledger.over_limit(job) == QuotaLimit("lab", "slots", 13, 20)
        assert ledger.over_limit(replace(job, project="free")) is None
        assert ledger.over_limit(replace(job, project="stranger")) is None

    def test_jobs_of_parts_count_against_a_limit_on_running_jobs(self) -> None:
        held = (running(8, {0: (0,)}, project="part"), running(9, {0: (1,)}, project="lab"))
        job = queued(1, 1, 1, project="part")
        tree = (replace(LAB, max_running=3), PART)
        ledger = ledger_of(job, held=held, projects=tree)
        assert ledger.num_jobs == {"part": 1, "lab": 2}
        assert ledger.over_limit(job) is None
        ledger.use("part", 1, 1)
        assert ledger.over_limit(job) == QuotaLimit("lab", "jobs", 3, 3)


class TestRank:
    def test_tier_fair_share_priority_guard_overdue_urgency_wait_and_number_in_this_order(
        self,
    ) -> None:
        now = 10 * DAY
        jobs = (
            # Most urgent by tier, and least in every other way.
            queued(1, 1, 2, 10, project="part", queued_at=now),
            queued(2, 1, 4, 90, project="free", queued_at=now - DAY),
            queued(3, 1, 4, 50, project="free", queued_at=now - 8 * DAY),
            queued(4, 1, 4, 50, project="free", queued_at=now - 9 * DAY),
            queued(5, 1, 4, 50, project="free", queued_at=now, remaining_s=1.0),
            queued(6, 1, 4, 50, project="free", queued_at=now - 2 * DAY),
            queued(7, 1, 4, 50, project="free", queued_at=now - DAY),
            queued(8, 1, 4, 50, project="free", queued_at=now - DAY),
            queued(9, 1, 4, 99, project="used", queued_at=now - 9 * DAY),
        )
        held = (running(99, {0: (0, 1)}, project="used"),)
        tree = (LAB, PART, FREE, Project("used", max_slots=50))
        ledger = ledger_of(*jobs, held=held, projects=tree, now=now, num_nodes=40)
        ranks = {
            num: ledger.rank(eq_class, position)
            for eq_class in ledger.cluster.classes.values()
            for position, (_, num) in enumerate(eq_class.jobs)
        }
        assert sorted(ranks, key=lambda num: ranks[num]) == [1, 2, 4, 3, 6, 7, 8, 5, 9]
        assert ranks[4] == (EntitlementTier.SHARED, (0,), -50, 0, 0.0, now - 9 * DAY, 4)
        assert ranks[6][3:] == (1, 0.0, now - 2 * DAY, 6)
        assert ranks[5][3:] == (2, -ledger.urgency(ledger.cluster.class_of[5], now), now, 5)
        assert ranks[9][:3] == (EntitlementTier.SHARED, (2,), -99)

    def test_urgency_grows_with_the_wait_from_a_base_that_follows_history(self) -> None:
        history = History()
        ledger = ledger_of(queued(1, 1, 4), history=history, now=DAY)
        (eq_class,) = ledger.cluster.classes.values()
        before = ledger.urgency(eq_class, 0)
        assert before == aged(eq_class.base, 86_400.0, ledger.config)
        assert eq_class.base == 2 * history.index(eq_class.kind, 0)
        assert ledger.urgency(eq_class, DAY) == eq_class.base
        for _ in range(50):
            history.observe(eq_class.kind, 30.0)
        assert ledger.urgency(eq_class, 0) > 10 * before
        assert eq_class.base == 2 * history.index(eq_class.kind, 0)

    @pytest.mark.parametrize(
        ("num_nodes", "facts", "largest"),
        [
            (4, {}, 16),
            (400, {}, 48.0),
            (4, {"large_job_slots": 3, "large_job_fraction": 0.5}, 8.0),
            (0, {}, 16),
        ],
    )
    def test_a_job_is_large_by_the_largest_pool(
        self, num_nodes: int, facts: dict[str, float], largest: float
    ) -> None:
        ledger = ledger_of(num_nodes=num_nodes, config=PlannerConfig(**facts))
        assert ledger.largest_small() == ledger.largest_small() == largest

    def test_a_preempted_large_job_goes_just_before_the_large_jobs_that_have_not_run(self) -> None:
        config = PlannerConfig(large_job_slots=4, num_overdue=0)
        jobs = (
            queued(1, 2, 4, attained_slot_s=1e7, queued_at=DAY),
            queued(2, 2, 4, queued_at=0),
            queued(7, 2, 4, queued_at=DAY),
            # As many slots as a small job may have.
            queued(8, 1, 4, queued_at=0, remaining_s=1.0),
            queued(3, 2, 4, 60, queued_at=0),
            queued(4, 1, 4, attained_slot_s=1e7, queued_at=DAY),
        )
        ledger = ledger_of(*jobs, config=config, now=DAY)
        urgent = {num: -ledger.rank(ledger.cluster.class_of[num], 0)[4] for num in range(1, 5)}
        assert urgent[1] == pytest.approx(urgent[2]) and urgent[1] > urgent[2]
        # A small one has no such right, and another priority does not count.
        small = ledger.cluster.class_of[4]
        assert urgent[4] == ledger.urgency(small, DAY) < urgent[2]
        alone = ledger_of(jobs[0], jobs[4], config=config, now=DAY)
        large = alone.cluster.class_of[1]
        assert -alone.rank(large, 0)[4] == alone.urgency(large, DAY)


class TestDecisions:
    REASON = Reason(ReasonCode.PREEMPTED, "makes room")

    def test_they_become_a_plan_in_their_order(self) -> None:
        decisions = Decisions(num_steps=7)
        starts = [Start(2, placed({0: (0,)})), Start(1, placed({0: (1,)}))]
        decisions.starts += starts
        decisions.started |= {1, 2}
        first, done = Reservation(3, ("n0",), 5, 9, (8,)), Reservation(2, ("n1",), 5, 9)
        decisions.reservations += [first, done]
        preemption = Preemption(8, 3, 1.5, self.REASON)
        decisions.preemptions.append(preemption)
        decisions.pending = PendingReasons({3: self.REASON}, [], set())
        plan = decisions.plan(99)
        assert plan.starts == tuple(starts)
        # A job that starts elsewhere needs its reservation no longer.
        assert plan.reservations == (first,)
        assert plan.preemptions == (preemption,)
        assert (plan.wake_at, plan.num_steps) == (99, 7)
        assert plan.pending_reasons == ((3, self.REASON),)
        assert (plan.resizes, plan.migrations) == ((), ())

    def test_a_job_that_changes_its_size_leaves_its_slots(self) -> None:
        decisions = Decisions()
        held = running(4, {0: (0,), 1: (0,)})
        resize = Resize(4, placed({0: (0,)}), self.REASON)
        decisions.resize(held, resize)
        assert decisions.leaving == {4}
        assert decisions.plan(None).resizes == (resize,)
        assert decisions.plan(None).pending_reasons == ()
