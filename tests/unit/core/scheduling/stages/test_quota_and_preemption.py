"""The stages quota, shrink and preempt: limits by exact numbers, and which running jobs leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import Node
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Preemption,
    Project,
    QueuedJob,
    Reservation,
    RunningJob,
    plan,
)
from phalanx.core.scheduling.model.durations import EDGES, bin_of
from phalanx.core.scheduling.stages import serving
from phalanx.core.scheduling.stages.queue import QueueHead, Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import head_of, kept_by, nodes, pass_on, queued, running, starts_of

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 20_000 * US
FULL = (0, 1, 2, 3)
# A job that no other job may preempt.
SAFE = {"priority": 99, "preemptible": False}


class TestQuota:
    """A job of four slots in project a, which is part of vision, which is part of lab."""

    @pytest.mark.parametrize(
        ("limits", "text"),
        [
            ({}, None),
            ({"a": {"max_slots": 4}}, None),
            ({"a": {"max_slots": 3}}, "needs 4 slots; project a holds 0 of at most 3"),
            ({"vision": {"max_slots": 8}}, None),
            (
                {"vision": {"max_slots": 7}},
                "needs 4 slots; project vision, which a is part of, holds 4 of at most 7",
            ),
            (
                {"lab": {"max_slots": 7}},
                "needs 4 slots; project lab, which a is part of, holds 4 of at most 7",
            ),
            (
                {"a": {"max_slots": 3}, "vision": {"max_slots": 3}},
                "needs 4 slots; project a holds 0 of at most 3",
            ),
            ({"lab": {"max_running": 2}}, None),
            (
                {"lab": {"max_running": 1}},
                "project lab, which a is part of, runs 1 jobs of at most 1",
            ),
            ({"a": {"max_running": 0}}, "project a runs 0 jobs of at most 0"),
            ({"b": {"max_slots": 4, "max_running": 1}}, None),
            (
                {"lab": {"max_slots": 7, "max_running": 1}},
                "needs 4 slots; project lab, which a is part of, holds 4 of at most 7",
            ),
        ],
    )
    def test_the_nearest_limit_that_would_be_exceeded_blocks(
        self, limits: dict[str, dict[str, int]], text: str | None
    ) -> None:
        parents = {"lab": "", "vision": "lab", "a": "vision", "b": "vision"}
        projects = tuple(
            Project(name, parent=parent, **limits.get(name, {}))  # type: ignore[arg-type]
            for name, parent in parents.items()
        )
        sibling = running(7, {0: FULL}, project="b", preemptible=False)
        job = queued(1, 1, 4, project="a")
        state = pass_on(PlanningInput(nodes(4), (sibling,), (job,), projects), NOW)
        verdict = serving.quota(state, head_of(state, 1))
        assert verdict is (Verdict.OPEN if text is None else Verdict.BLOCKED)
        found = [reason for _, reason in state.decisions.limited]
        assert found == ([] if text is None else [Reason(ReasonCode.WAITING_FOR_QUOTA, text)])

    def test_a_job_outside_of_all_projects_has_no_limit(self) -> None:
        projects = (Project("a", max_slots=0, max_running=0),)
        state = pass_on(PlanningInput(nodes(1), (), (queued(1, 1, 4),), projects), NOW)
        assert serving.quota(state, head_of(state, 1)) is Verdict.OPEN

    def test_a_smaller_job_behind_a_limited_one_starts_up_to_the_limit(self) -> None:
        waiting = (
            queued(1, 2, 4, 90, project="a"),
            queued(2, 1, 4, project="a"),
            queued(3, 1, 4, project="a"),
        )
        limited = (Project("a", max_slots=4),)
        decided = plan(PlanningInput(nodes(4), (), waiting, limited), NOW)
        assert starts_of(decided).keys() == {2}
        assert [(num, reason.message) for num, reason in decided.pending_reasons] == [
            (1, "needs 8 slots; project a holds 4 of at most 4"),
            (3, "needs 4 slots; project a holds 4 of at most 4"),
        ]

    def test_a_limit_on_running_jobs_takes_them_in_the_order_of_the_queue(self) -> None:
        waiting = tuple(queued(num, 1, 1, num, project="a") for num in (10, 20, 30))
        decided = plan(PlanningInput(nodes(4), (), waiting, (Project("a", max_running=2),)), NOW)
        assert starts_of(decided).keys() == {20, 30}
        ((num, reason),) = decided.pending_reasons
        assert (num, reason.message) == (10, "project a runs 2 jobs of at most 2")


def asked(
    *held: RunningJob,
    waiting: tuple[QueuedJob, ...] = (queued(1, 1, 4, queued_at=NOW),),
    where: tuple[Node, ...] = nodes(2),
    projects: tuple[Project, ...] = (),
    config: PlannerConfig | None = None,
) -> Pass:
    snapshot = PlanningInput(where, held, waiting, projects, config=config or PlannerConfig())
    return pass_on(snapshot, NOW)


def preempt(state: Pass, num: int = 1) -> list[int]:
    """Let a job preempt others; the jobs that leave for it."""
    head, before = head_of(state, num), len(state.decisions.preemptions)
    assert serving.shrink(state, head) is Verdict.OPEN
    verdict = serving.preempt(state, head)
    leave = [one.job for one in state.decisions.preemptions[before:]]
    assert verdict is (Verdict.SERVED if leave else Verdict.OPEN)
    return leave


class TestBudget:
    @pytest.mark.parametrize(
        ("searches", "steps", "may"), [(0, 0, True), (1, 9, True), (2, 0, False), (0, 10, False)]
    )
    def test_a_search_needs_both_budgets(self, searches: int, steps: int, may: bool) -> None:
        config = PlannerConfig(preemption_budget=2, step_budget=10)
        state = asked(running(7, {0: FULL, 1: FULL}, priority=10), config=config)
        state.num_searches, state.decisions.num_steps = searches, steps
        head = head_of(state, 1)
        assert serving.shrink(state, head) is Verdict.OPEN
        assert head.may_search is may
        assert state.num_searches == searches + may
        assert serving.preempt(state, head) is (Verdict.SERVED if may else Verdict.OPEN)
        assert len(state.decisions.preemptions) == may

    def test_a_head_may_not_search_before_the_budget_was_looked_at(self) -> None:
        state = asked(running(7, {0: FULL, 1: FULL}, priority=10))
        eq_class = head_of(state, 1).eq_class
        assert serving.preempt(state, QueueHead(eq_class, 0, 1, 1)) is Verdict.OPEN
        assert state.decisions.preemptions == []


class TestVictims:
    @pytest.mark.parametrize(
        ("facts", "leaves"),
        [
            pytest.param({"priority": 49}, True, id="lower priority"),
            pytest.param(
                {"priority": 50, "started_at": NOW}, False, id="equal priority, just begun"
            ),
            pytest.param({"priority": 51}, False, id="higher priority"),
            pytest.param({"preemptible": False}, False, id="not preemptible"),
            pytest.param({"stopping": True}, False, id="leaves already"),
            pytest.param({"started_at": None}, False, id="start unknown"),
            pytest.param({"protected_until": NOW}, True, id="protection just over"),
            pytest.param({"protected_until": NOW + 1}, False, id="protected"),
            pytest.param({"started_at": NOW}, True, id="started just now"),
            pytest.param({"save_s": None}, True, id="killed without a save"),
            pytest.param({"save_s": None, "saved_at": 0}, True, id="much work is lost"),
        ],
    )
    def test_a_job_of_a_lower_priority_leaves_unless_it_is_exempt(
        self, facts: dict[str, object], leaves: bool
    ) -> None:
        candidate = running(7, {0: FULL}, **{"priority": 10, **facts})
        state = asked(candidate, running(8, {1: FULL}, **SAFE))
        assert preempt(state) == [7] * leaves

    def test_the_cheapest_node_is_cleared(self) -> None:
        dear = running(7, {0: FULL}, priority=10, restart_s=61.0)
        cheap = running(8, {1: FULL}, priority=10, restart_s=60.0)
        assert preempt(asked(dear, cheap)) == [8]
        assert preempt(asked(replace(dear, restart_s=59.0), cheap)) == [7]

    def test_a_job_that_saves_on_request_is_cheaper_than_one_that_loses_its_work(self) -> None:
        saves = running(7, {0: FULL}, priority=10, save_s=600.0)
        kills = running(8, {1: FULL}, priority=10, save_s=None, saved_at=NOW - 601 * US)
        assert preempt(asked(saves, kills)) == [7]
        assert preempt(asked(saves, replace(kills, saved_at=NOW - 599 * US))) == [8]

    def test_one_domain_is_cleared_although_two_halves_would_be_cheaper(self) -> None:
        costs = (10.0, 500.0, 10.0, 600.0)
        held = tuple(
            running(10 + node, {node: FULL}, priority=10, restart_s=cost)
            for node, cost in enumerate(costs)
        )
        gang = (queued(1, 2, 4),)
        assert sorted(preempt(asked(*held, waiting=gang, where=nodes(4)))) == [10, 11]
        flat = tuple(replace(node, domains=()) for node in nodes(4))
        assert sorted(preempt(asked(*held, waiting=gang, where=flat))) == [10, 12]

    def test_a_job_on_two_nodes_leaves_once_for_a_gang_on_both(self) -> None:
        wide = running(7, {0: (0, 1), 1: (0, 1)}, priority=10)
        rest = (running(8, {0: (2, 3)}, priority=10), running(9, {1: (2, 3)}, priority=10))
        state = asked(wide, *rest, waiting=(queued(1, 2, 4),))
        assert sorted(preempt(state)) == [7, 8, 9]
        assert state.ledger.used == {"": 8}

    def test_a_job_on_two_nodes_is_spared_where_one_on_a_single_node_will_do(self) -> None:
        wide = running(7, {0: (0, 1), 1: (0, 1)}, priority=10)
        alone = running(8, {0: (2, 3)}, priority=10)
        safe = running(9, {1: (2, 3)}, **SAFE)
        assert preempt(asked(wide, alone, safe, waiting=(queued(1, 1, 2),))) == [8]

    def test_slots_that_are_free_already_are_used_first(self) -> None:
        held = (running(7, {0: (0,)}, priority=10), running(8, {0: (1, 2)}, priority=10))
        state = asked(*held, running(9, {1: FULL}, **SAFE), waiting=(queued(1, 1, 2),))
        assert preempt(state) == [7]
        assert kept_by(state) == {1: {"n0": 1}}

    def test_a_victim_is_promised_to_one_gang_only(self) -> None:
        both = (queued(1, 1, 4), queued(2, 1, 4))
        state = asked(
            running(7, {0: FULL}, priority=10), running(8, {1: FULL}, **SAFE), waiting=both
        )
        assert preempt(state, 1) == [7]
        assert preempt(state, 2) == []


# The run time that a gang with 600 s left is taken to need: the upper edge of its bin.
NEEDS_S = EDGES[bin_of(600.0) + 1]
DECIDED = PlannerConfig(hysteresis=2.0, min_run_s=1200.0, lost_per_need=0.01)


class TestPeers:
    """Jobs of the same priority: only much less urgent ones leave, and not right after a start."""

    def leaves(self, config: PlannerConfig = DECIDED, waited_us: int = 0, **facts: object) -> bool:
        gang = queued(1, 1, 4, remaining_s=600.0, queued_at=NOW - waited_us)
        peer = running(7, {0: FULL}, **{"remaining_s": 3 * NEEDS_S, **facts})
        state = asked(peer, running(8, {1: FULL}, **SAFE), waiting=(gang,), config=config)
        return preempt(state) == [7]

    @pytest.mark.parametrize(("factor", "leaves"), [(1.0, False), (2.0, False), (2.001, True)])
    def test_the_gang_must_be_more_urgent_by_the_hysteresis(
        self, factor: float, leaves: bool
    ) -> None:
        assert self.leaves(remaining_s=factor * NEEDS_S) is leaves

    def test_an_infinite_hysteresis_spares_all_peers(self) -> None:
        assert not self.leaves(replace(DECIDED, hysteresis=float("inf")), remaining_s=1e9)

    @pytest.mark.parametrize(("ran_us", "leaves"), [(1200 * US, True), (1200 * US - 1, False)])
    def test_a_job_runs_for_a_while_before_peers_preempt_it(
        self, ran_us: int, leaves: bool
    ) -> None:
        assert self.leaves(started_at=NOW - ran_us) is leaves

    @pytest.mark.parametrize(("until", "leaves"), [(NOW, True), (NOW + 1, False)])
    def test_protection_ends_at_its_time(self, until: int, leaves: bool) -> None:
        assert self.leaves(protected_until=until) is leaves

    @pytest.mark.parametrize(("most", "leaves"), [(4, True), (3, False)])
    def test_a_large_job_is_no_victim_of_its_peers(self, most: int, leaves: bool) -> None:
        config = replace(DECIDED, large_job_slots=most, large_job_fraction=0.0)
        assert self.leaves(config) is leaves

    @pytest.mark.parametrize(("part", "leaves"), [(0.99, True), (1.01, False)])
    def test_a_peer_that_cannot_save_may_lose_a_small_part_of_the_need_of_the_gang(
        self, part: float, leaves: bool
    ) -> None:
        lost_us = int(part * 0.01 * NEEDS_S * US)
        assert self.leaves(save_s=None, saved_at=NOW - lost_us) is leaves

    @pytest.mark.parametrize(
        ("waited_us", "delayed_s", "leaves"),
        [
            (100 * US, 0.0, False),
            (100 * US + 1, 0.0, True),
            (100 * US + 1, 50.0, True),
            (100 * US + 1, 50.1, False),
        ],
        ids=["not yet guarded", "guarded", "half the wait", "more than half the wait"],
    )
    def test_a_starving_gang_preempts_any_peer_that_has_not_starved_itself(
        self, waited_us: int, delayed_s: float, leaves: bool
    ) -> None:
        config = replace(DECIDED, guard_after_s=100.0)
        found = self.leaves(config, waited_us, remaining_s=10.0, delayed_s=delayed_s)
        assert found is leaves


class TestProjects:
    def test_borrowed_slots_are_given_back_cheapest_first(self) -> None:
        held = (
            running(7, {0: FULL}, project="b", priority=90, restart_s=61.0),
            running(8, {1: FULL}, project="b", priority=90),
        )
        gang = (queued(1, 1, 4, project="a"),)
        projects = (Project("a", 4), Project("b", 4))
        state = asked(*held, waiting=gang, projects=projects)
        assert preempt(state) == [8]
        assert state.ledger.used == {"a": 4, "b": 4}

    @pytest.mark.parametrize(
        ("own", "other", "leaves"), [(4, 0, True), (3, 0, False), (4, 8, False), (4, 5, True)]
    )
    def test_only_a_guarantee_takes_back_only_what_is_beyond_a_guarantee(
        self, own: int, other: int, leaves: bool
    ) -> None:
        held = (running(7, {0: FULL, 1: FULL}, project="b", priority=90),)
        projects = (Project("a", own), Project("b", other))
        state = asked(*held, waiting=(queued(1, 1, 4, project="a"),), projects=projects)
        assert preempt(state) == [7] * leaves


class TestPromise:
    @pytest.mark.parametrize(
        ("saves", "wait_s"), [((30.0, 90.0), 90.0), ((None, 12.5), 12.5), ((None, None), 0.0)]
    )
    def test_nodes_are_kept_for_the_longest_save_and_a_grace(
        self, saves: tuple[float | None, float | None], wait_s: float
    ) -> None:
        held = [
            running(7 + node, {node: FULL}, priority=10, save_s=save_s)
            for node, save_s in enumerate(saves)
        ]
        config = PlannerConfig(reservation_ttl_s=100.0)
        state = asked(*held, waiting=(queued(1, 2, 4),), config=config)
        assert sorted(preempt(state)) == [7, 8]
        (kept,) = state.decisions.reservations
        assert (kept.job, sorted(kept.nodes), sorted(kept.victims)) == (1, ["n0", "n1"], [7, 8])
        assert kept.ready_at == NOW + wait_s * US
        assert kept.expires_at == NOW + (wait_s + 100.0) * US

    def test_a_victim_is_told_for_which_job_and_at_what_cost(self) -> None:
        victim = running(7, {0: FULL}, priority=10, save_s=30.0, restart_s=60.0)
        state = asked(victim, running(8, {1: FULL}, **SAFE))
        assert preempt(state) == [7]
        text = "makes room for j-1 (4 slots, priority 50); costs about 0.10 slot-hours"
        reason = Reason(ReasonCode.PREEMPTED, text)
        assert state.decisions.preemptions == [Preemption(7, 1, 360.0, reason)]
        assert state.decisions.reasons == {
            1: Reason(ReasonCode.WAITING_FOR_VICTIMS, "starts on n0 once j-7 have saved and exited")
        }

    def test_its_project_uses_the_slots_from_now_on_and_that_of_the_victim_no_longer(self) -> None:
        victim = running(7, {0: FULL}, priority=10, project="b")
        gang = (queued(1, 1, 2, project="a"),)
        projects = (Project("lab"), Project("a", parent="lab"), Project("b", parent="lab"))
        safe = running(8, {1: FULL}, **SAFE)
        state = asked(victim, safe, waiting=gang, projects=projects)
        assert preempt(state) == [7]
        assert state.ledger.used == {"lab": 2, "a": 2, "b": 0, "": 4}

    def test_the_next_pass_keeps_the_promise_and_asks_for_no_more_victims(self) -> None:
        held = (running(7, {0: FULL}, priority=10), running(8, {1: FULL}, priority=10))
        first = plan(PlanningInput(nodes(2), held, (queued(1, 1, 4),)), NOW)
        assert [one.job for one in first.preemptions] == [7]
        leaving = (replace(held[0], stopping=True), held[1])
        waiting = (queued(1, 1, 4),)
        again = PlanningInput(nodes(2), leaving, waiting, (), first.reservations)
        second = plan(again, NOW + US)
        assert (second.preemptions, second.reservations) == ((), first.reservations)
        late = plan(again, first.reservations[0].expires_at)
        assert [one.job for one in late.preemptions] == [8]
        assert [one.nodes for one in late.reservations] == [("n1",)]
        done = replace(again, held=held[1:])
        assert starts_of(plan(done, NOW + 2 * US)) == {1: ["n0"]}
        assert Reservation(1, ("n0",), NOW + 30 * US, NOW + 930 * US, (7,)) in first.reservations
