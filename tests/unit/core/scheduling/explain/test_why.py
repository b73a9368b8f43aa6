"""`why`: what binds, by how much, when, what would help, and who pays for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    Why,
    plan,
    why_victim,
)
from phalanx.core.scheduling.explain.constraints import Binding, Constraint
from phalanx.core.scheduling.explain.forecast import eta
from phalanx.core.scheduling.explain.why import why
from phalanx.core.scheduling.model.durations import History, KindKey
from support.clusters import nodes
from support.clusters import queued as job
from support.clusters import running as held

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
FULL = (0, 1, 2, 3)


def request(snapshot: PlanningInput, num: int = 1, now: int = HOUR) -> Why:
    answer = why(snapshot, num, now)
    assert answer is not None
    return answer


def bound(answer: Why, binding: Binding) -> Constraint:
    return next(c for c in answer.constraints if c.binding is binding)


class TestConstraints:
    def test_slots_are_counted_and_their_holders_named(self) -> None:
        running = (held(8, {0: FULL}, priority=90, project="vision"),)
        found = bound(request(PlanningInput(nodes(1), running, (job(1, 1, 2),))), Binding.SLOTS)
        assert (found.need, found.have) == (2, 0)
        assert "vision 4" in found.text

    def test_scattered_slots_are_a_matter_of_topology_not_of_number(self) -> None:
        running = tuple(held(8 + i, {i: (0, 1)}, priority=90) for i in range(2))
        found = bound(request(PlanningInput(nodes(2), running, (job(1, 1, 4),))), Binding.TOPOLOGY)
        assert (found.need, found.have, found.unit) == (1, 0, "nodes")

    def test_a_required_domain_names_the_best_one(self) -> None:
        running = (held(8, {0: FULL}, priority=90), held(9, {2: FULL}, priority=90))
        asked = (job(1, 2, 4, required="rack"),)
        found = bound(request(PlanningInput(nodes(4), running, asked)), Binding.TOPOLOGY)
        assert (found.need, found.have) == (2, 1)
        assert "in one rack" in found.text

    def test_a_quota_says_by_how_much(self) -> None:
        mine = (Project("a", max_slots=6),)
        running = (held(8, {0: FULL}, project="a", preemptible=False),)
        answer = request(PlanningInput(nodes(2), running, (job(1, 1, 4, project="a"),), mine))
        found = bound(answer, Binding.QUOTA)
        assert (found.need, found.have) == (4, 2)
        assert "2 too many" in found.text
        assert "starts now if project a might hold 8 slots" in [c.text for c in answer.changes]

    def test_cpus_are_told_apart_from_slots(self) -> None:
        running = (held(8, {0: (0,)}, priority=90, cpus_per_node=6),)
        asked = (job(1, 1, 2, cpus_per_node=4),)
        answer = request(PlanningInput(nodes(1), running, asked))
        found = bound(answer, Binding.CPUS)
        assert (found.need, found.have) == (4, 2)
        assert any("CPUs a node" in change.text for change in answer.changes)

    def test_drained_nodes_are_named_and_their_return_would_help(self) -> None:
        drained = (replace(nodes(1)[0], closed="drained"), nodes(2)[1])
        running = (held(8, {1: FULL}, priority=90),)
        answer = request(PlanningInput(drained, running, (job(1, 1, 4),)))
        assert bound(answer, Binding.CLOSED_NODES).names == ("n0",)
        assert "starts now if n0 accepted jobs" in [c.text for c in answer.changes]

    def test_slots_kept_for_the_first_in_line_name_it(self) -> None:
        running = (held(8, {0: FULL}, priority=90, max_duration_s=36_000.0),)
        config = PlannerConfig(guard_after_s=1e9)
        asked = (job(1, 2, 4), job(2, 1, 4))
        answer = request(PlanningInput(nodes(2), running, asked, config=config), 2)
        assert bound(answer, Binding.KEPT).names == ("j-1",)
        assert [c.text for c in answer.changes if "max_duration" in c.text]

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            (job(1, 1, 8), "no node has 8 slots"),
            (job(1, 1, 1, pools=("x",)), "there is no pool x; known: p"),
            (job(1, 1, 1, slot_type="H100"), "is of slot type H100"),
            (job(1, 1, 1, required="block"), "has a block in its topology"),
        ],
    )
    def test_what_can_never_run_says_which_demand_is_too_much(
        self, asked: QueuedJob, said: str
    ) -> None:
        found = bound(request(PlanningInput(nodes(2), (), (asked,))), Binding.NO_SUCH_NODES)
        assert said in found.text

    def test_a_back_off_counts_down(self) -> None:
        answer = request(PlanningInput(nodes(1), (), (job(1, 1, 1, not_before=HOUR + 60 * US),)))
        assert bound(answer, Binding.BACK_OFF).need == 60

    def test_a_job_that_starts_at_the_next_pass_is_bound_by_nothing(self) -> None:
        answer = request(PlanningInput(nodes(1), (), (job(1, 1, 1),)))
        assert (answer.constraints, answer.changes) == ((), ())
        assert answer.eta_p50_at == answer.eta_p90_at == HOUR


class TestChanges:
    def test_the_largest_smaller_gang_is_offered(self) -> None:
        running = (held(8, {0: FULL}, priority=90), held(9, {1: (0,)}, priority=90))
        answer = request(PlanningInput(nodes(4), running, (job(1, 4, 4),)))
        assert "starts now with 8 slots on 2 nodes" in [c.text for c in answer.changes]

    def test_an_offer_is_what_the_planner_then_does(self) -> None:
        running = (held(8, {0: FULL}, preemptible=False),)
        running += (held(9, {1: (0, 1)}, preemptible=False),)
        snapshot = PlanningInput(nodes(2), running, (job(1, 2, 4),))
        texts = [c.text for c in request(snapshot).changes]
        assert texts == ["starts now with 2 slots on 1 node"]
        smaller = replace(snapshot, waiting=(job(1, 1, 2),))
        assert [start.job for start in plan(smaller, HOUR).starts] == [1]

    def test_a_higher_priority_lists_its_victims(self) -> None:
        running = (held(8, {0: FULL}, priority=50),)
        config = PlannerConfig(hysteresis=float("inf"))
        answer = request(PlanningInput(nodes(1), running, (job(1, 1, 4, 40),), config=config))
        change = next(c for c in answer.changes if c.kind == "priority")
        assert change.text == "starts now at priority 60"
        assert (change.by_preemption, change.victims) == (True, (8,))


class TestVictims:
    def cluster(self, **more: object) -> PlanningInput:
        running = (held(8, {0: FULL}, priority=10, **more),)
        return PlanningInput(nodes(1), running, (job(1, 1, 4, priority=90),))

    def test_the_waiting_job_and_the_victim_tell_the_same_story(self) -> None:
        snapshot = self.cluster()
        (victim,) = request(snapshot).victims
        assert victim == why_victim(snapshot, 8, HOUR)
        assert (victim.job, victim.beneficiary) == (8, 1)
        assert "j-1 (4 slots, priority 90)" in victim.text

    def test_the_cost_is_restart_and_save_or_the_lost_work(self) -> None:
        saves = why_victim(self.cluster(save_s=30.0, restart_s=60.0), 8, HOUR)
        assert saves is not None
        assert (saves.lost_slot_s, saves.price_slot_s) == (0.0, 4 * 90.0)
        loses = why_victim(self.cluster(save_s=None, restart_s=60.0, saved_at=HOUR // 2), 8, HOUR)
        assert loses is not None
        assert (loses.lost_slot_s, loses.price_slot_s) == (4 * 1800.0, 4 * 1860.0)

    def test_a_victim_that_is_leaving_keeps_its_story(self) -> None:
        snapshot = self.cluster(stopping=True)
        reservation = Reservation(1, ("n0",), HOUR, 2 * HOUR, (8,))
        told = why_victim(replace(snapshot, reservations=(reservation,)), 8, HOUR)
        assert told is not None and told.beneficiary == 1

    def test_nobodys_victim_has_no_story(self) -> None:
        assert why_victim(PlanningInput(nodes(1), (held(8, {0: FULL}),), ()), 8, HOUR) is None


class TestEta:
    def test_a_declared_end_is_believed(self) -> None:
        running = (held(8, {0: FULL}, priority=90, max_duration_s=7200.0),)
        answer = request(PlanningInput(nodes(1), running, (job(1, 1, 4),)))
        assert answer.eta_p50_at is not None and answer.eta_p90_at is not None
        assert abs(answer.eta_p50_at - 2 * HOUR) < 60 * US

    def test_nobody_invents_an_end(self) -> None:
        running = (held(8, {0: FULL}, priority=90),)
        answer = request(PlanningInput(nodes(1), running, (job(1, 1, 4),)))
        assert (answer.eta_p50_at, answer.eta_p90_at) == (None, None)

    def test_the_spread_of_a_learned_run_time_shows_in_the_quantiles(self) -> None:
        history = History()
        for minutes in range(1, 200):
            history.observe(KindKey("", "", 2), 4 * 60.0 * minutes)
        running = (held(8, {0: FULL}, priority=90, started_at=HOUR - US),)
        when = eta(PlanningInput(nodes(1), running, (job(1, 1, 4),), history=history), 1, HOUR, 21)
        assert when.p50_at is not None and when.p90_at is not None
        assert 60 < (when.p50_at - HOUR) / 60 / US < 140
        assert 140 < (when.p90_at - HOUR) / 60 / US < 280

    def test_equal_snapshots_give_equal_answers(self) -> None:
        running = (held(8, {0: FULL}, priority=90, max_duration_s=7200.0),)
        snapshot = PlanningInput(nodes(1), running, (job(1, 1, 4), job(2, 1, 2)))
        assert request(snapshot, 2) == request(snapshot, 2)
