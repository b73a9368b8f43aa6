"""Each stage of the planner on clusters small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.reasons import ReasonCode
from phalanx.core.scheduling import (
    Plan,
    PlannerConfig,
    PlanningInput,
    Project,
    RunningJob,
    plan,
)
from phalanx.core.scheduling.explain.why import why
from phalanx.core.scheduling.index.slots import pick
from phalanx.core.scheduling.model.durations import History, KindKey, bin_of
from phalanx.core.scheduling.model.entitlement import entitlements
from support.clusters import nodes
from support.clusters import queued as job
from support.clusters import running as held

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US


def where(decided: Plan, num: int) -> list[str]:
    start = next(s for s in decided.starts if s.job == num)
    return [share.node for share in start.placement.shares]


def started(decided: Plan) -> list[int]:
    return [start.job for start in decided.starts]


FULL = (0, 1, 2, 3)


class TestPlacement:
    def test_a_gang_takes_the_tightest_rack_that_holds_it(self) -> None:
        cluster = PlanningInput(nodes(6, rack=3), (held(9, {0: FULL}),), (job(1, 2, 4),))
        assert where(plan(cluster, 1), 1) == ["n1", "n2"]

    def test_a_part_of_a_node_goes_where_a_node_is_broken_already(self) -> None:
        cluster = PlanningInput(nodes(4), (held(9, {2: (0, 1)}),), (job(1, 1, 2),))
        assert where(plan(cluster, 1), 1) == ["n2"]

    def test_a_required_rack_is_never_left(self) -> None:
        requests = (job(1, 3, 4, required="rack"), job(2, 3, 4))
        decided = plan(
            PlanningInput(nodes(4), (), requests, config=PlannerConfig(num_reservations=0)), 1
        )
        assert started(decided) == [2]

    def test_closed_and_tainted_nodes_are_not_used(self) -> None:
        closed = nodes(2, closed="drained")
        assert plan(PlanningInput(closed, (), (job(1, 1, 1),)), 1).starts == ()
        tainted = nodes(2, taints=("gpu",))
        assert plan(PlanningInput(tainted, (), (job(1, 1, 1),)), 1).starts == ()
        requests = (job(1, 1, 1, tolerates=("gpu",)),)
        assert started(plan(PlanningInput(tainted, (), requests), 1)) == [1]

    def test_cpus_are_counted_down_not_only_compared(self) -> None:
        requests = (job(1, 1, 1, cpus_per_node=5), job(2, 1, 1, cpus_per_node=5))
        assert started(plan(PlanningInput(nodes(1), (), requests), 1)) == [1]

    def test_roles_start_together_or_not_at_all(self) -> None:
        role = GangShape(1, 2, 1)
        fits = job(1, 1, 2, roles=(role,))
        assert len(where(plan(PlanningInput(nodes(1), (), (fits,)), 1), 1)) == 2
        too_large = job(1, 1, 3, roles=(role,))
        assert plan(PlanningInput(nodes(1), (), (too_large,)), 1).starts == ()

    def test_slots_are_taken_in_aligned_blocks(self) -> None:
        assert pick(0b11111110, 4) == 0b11110000
        assert pick(0b00010110, 2) == 0b00000110


class TestOrder:
    def test_priority_goes_first_then_age(self) -> None:
        requests = (job(1, 1, 4), job(2, 1, 4), job(3, 1, 4, priority=90))
        assert started(plan(PlanningInput(nodes(2), (), requests), 1)) == [3, 1]

    def test_a_short_kind_goes_before_a_long_one(self) -> None:
        history = History()
        for _ in range(200):
            history.observe(KindKey("", "short", 2), 300.0)
            history.observe(KindKey("", "long", 2), 300_000.0)
        requests = (job(1, 1, 4, kind="long"), job(2, 1, 4, kind="short"))
        assert started(plan(PlanningInput(nodes(1), (), requests, history=history), 10)) == [2]

    def test_the_guard_puts_a_starving_job_first(self) -> None:
        history = History()
        for _ in range(200):
            history.observe(KindKey("", "short", 2), 300.0)
            history.observe(KindKey("", "long", 2), 300_000.0)
        now = 8 * 24 * HOUR
        requests = (job(1, 1, 4, kind="long"), job(2, 1, 4, kind="short", queued_at=now))
        guarded = PlanningInput(nodes(1), (), requests, history=history)
        assert started(plan(guarded, now)) == [1]
        off = PlannerConfig(guard_after_s=1e12, steepness=1.0, num_overdue=0)
        off = replace(guarded, config=off)
        assert started(plan(off, now)) == [2]

    def test_a_hero_that_has_run_for_long_is_not_overdue_for_ever(self) -> None:
        history = History()
        for _ in range(30):
            history.observe(KindKey("", "", 2), 300.0)
        long = held(8, {0: FULL}, attained_slot_s=6e7, priority=90)
        decided = plan(PlanningInput(nodes(1), (long,), (job(1, 1, 4),), history=history), HOUR)
        (reservation,) = decided.reservations
        assert reservation.ready_at is not None
        assert reservation.ready_at > 2 * HOUR

    def test_an_eviction_does_not_make_a_wait_forgotten(self) -> None:
        history = History()
        for _ in range(200):
            history.observe(KindKey("", "short", 2), 300.0)
            history.observe(KindKey("", "long", 2), 300_000.0)
        now = 2 * HOUR
        back = job(1, 1, 4, kind="long", queued_at=now - 60 * US, delayed_s=200 * 3600.0)
        fresh = job(2, 1, 4, kind="short", queued_at=now)
        asked = PlanningInput(nodes(1), (), (back, fresh), history=history)
        assert started(plan(asked, now)) == [1]
        forgotten = replace(asked, waiting=(replace(back, delayed_s=0.0), fresh))
        assert started(plan(forgotten, now)) == [2]

    def test_a_running_job_keeps_what_its_waits_earned(self) -> None:
        short, now = job(2, 1, 4, queued_at=10 * HOUR), 10 * HOUR
        where = plan(PlanningInput(nodes(1), (), (job(1, 1, 4),)), 0).starts[0].placement
        long = RunningJob(1, where, priority=50, started_at=0, attained_slot_s=1e5)
        asked = PlanningInput(nodes(1), (long,), (short,))
        assert [p.job for p in plan(asked, now).preemptions] == [1]
        patient = replace(asked, held=(replace(long, delayed_s=400 * 3600.0),))
        assert plan(patient, now).preemptions == ()

    def test_two_that_starve_do_not_take_turns(self) -> None:
        config, now = PlannerConfig(guard_after_s=3600.0, steepness=1.0, steep_s=1e9), 10 * HOUR
        where = plan(PlanningInput(nodes(1), (), (job(1, 1, 4),)), 0).starts[0].placement
        long = RunningJob(1, where, priority=50, started_at=0, attained_slot_s=0.0)
        starving = job(2, 1, 4, attained_slot_s=1e7, delayed_s=7200.0, queued_at=now)
        asked = PlanningInput(nodes(1), (long,), (starving,), config=config)
        assert [p.job for p in plan(asked, now).preemptions] == [1]
        both = replace(asked, held=(replace(long, delayed_s=7200.0),))
        assert plan(both, now).preemptions == ()

    def test_without_history_the_index_falls_with_attained_service(self) -> None:
        history, key = History(), KindKey("", "", 0)
        values = [history.index(key, bin_of(s)) for s in (0, 1e3, 1e5, 1e7)]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == 4


class TestEntitlement:
    def test_guarantees_then_surplus_by_weight(self) -> None:
        projects = {p.name: p for p in (Project("a", 10, weight=1.0), Project("b", 0, weight=3.0))}
        assert entitlements(projects, {"a": 100, "b": 100}, 50) == {"a": 20.0, "b": 30.0}
        assert entitlements(projects, {"a": 4, "b": 100}, 50) == {"a": 4.0, "b": 46.0}

    def test_what_is_not_lent_stays_empty(self) -> None:
        projects = {p.name: p for p in (Project("a", 10, lend_slots=4), Project("b"))}
        assert entitlements(projects, {"b": 100}, 20)["b"] == 14.0

    def test_shares_of_children_come_out_of_their_parents(self) -> None:
        tree = (Project("root", 8), Project("x", parent="root"), Project("y", parent="root"))
        shares = entitlements({p.name: p for p in tree}, {"x": 9, "y": 2}, 8)
        assert shares == {"root": 8.0, "x": 6.0, "y": 2.0}

    def test_a_limit_binds_and_is_named(self) -> None:
        requests = (job(1, 1, 4, project="a"),)
        cluster = PlanningInput(nodes(2), (), requests, (Project("a", max_slots=2),))
        ((_, reason),) = plan(cluster, 1).pending_reasons
        assert reason.code is ReasonCode.WAITING_FOR_QUOTA
        assert "holds 0 of at most 2" in reason.message

    def test_a_guarantee_is_reclaimed_from_a_borrower_of_any_priority(self) -> None:
        running = (
            held(8, {0: FULL}, project="b", priority=90),
            held(9, {1: FULL}, project="b", priority=90),
        )
        requests = (job(1, 1, 4, project="a"),)
        projects = (Project("a", 4), Project("b", 4))
        decided = plan(PlanningInput(nodes(2), running, requests, projects), HOUR)
        assert len(decided.preemptions) == 1
        within = (Project("a", 0), Project("b", 8))
        assert plan(PlanningInput(nodes(2), running, requests, within), HOUR).preemptions == ()

    def test_equal_projects_share_a_full_cluster_equally(self) -> None:
        requests = tuple(job(n, 1, 1, project="a" if n <= 40 else "b") for n in range(1, 81))
        decided = plan(PlanningInput(nodes(4), (), requests, (Project("a"), Project("b"))), 1)
        of_a = sum(num <= 40 for num in started(decided))
        assert (of_a, len(started(decided))) == (8, 16)


class TestPreemption:
    def test_the_cheapest_domain_is_chosen_and_a_reservation_is_kept(self) -> None:
        running = (
            held(8, {0: FULL}, priority=10, save_s=None, saved_at=0),
            held(9, {1: FULL}, priority=10, save_s=None, saved_at=2 * HOUR - US),
        )
        decided = plan(PlanningInput(nodes(2), running, (job(1, 1, 4),)), 2 * HOUR)
        assert [p.job for p in decided.preemptions] == [9]
        (reservation,) = decided.reservations
        assert (reservation.job, reservation.nodes, reservation.victims) == (1, ("n1",), (9,))
        assert "makes room for j-1" in decided.preemptions[0].reason.message

    def test_nobody_is_evicted_when_the_gang_would_still_not_fit(self) -> None:
        running = (held(8, {0: FULL}, priority=10), held(9, {1: FULL}, priority=90))
        assert plan(PlanningInput(nodes(2), running, (job(1, 2, 4),)), HOUR).preemptions == ()

    @pytest.mark.parametrize(
        ("margin", "num_ended", "evicted"), [(100.0, 0, []), (0.0, 0, [8]), (100.0, 5000, [8])]
    )
    def test_peers_do_not_take_turns_while_nothing_is_known_of_them(
        self, margin: float, num_ended: int, evicted: list[int]
    ) -> None:
        history = History()
        for _ in range(num_ended):
            history.observe(KindKey("other", "", 9), 1e6)
        running = (held(8, {0: FULL}, started_at=0),)
        config = PlannerConfig(guess_margin=margin)
        waiting = (replace(job(1, 1, 4), submitted_at=HOUR),)
        snapshot = PlanningInput(nodes(1), running, waiting, history=history, config=config)
        assert [p.job for p in plan(snapshot, HOUR).preemptions] == evicted

    def test_a_peer_that_does_not_save_on_request_leaves_only_right_after_a_save(self) -> None:
        waiting = (replace(job(1, 1, 4), submitted_at=2 * HOUR),)

        def evicted(saved_s_ago: int, config: PlannerConfig) -> bool:
            saved_at = 2 * HOUR - saved_s_ago * US
            running = (held(8, {0: FULL}, attained_slot_s=1e6, save_s=None, saved_at=saved_at),)
            return bool(
                plan(PlanningInput(nodes(1), running, waiting, config=config), 2 * HOUR)
                .reservations[0]
                .victims
            )

        ours = PlannerConfig(guess_margin=0.0)
        assert evicted(0, ours) and not evicted(15, ours)
        assert evicted(15, replace(ours, lost_per_need=0.1))

    def test_superfluous_victims_are_spared(self) -> None:
        running = (
            held(7, {0: (0,)}, priority=10, restart_s=1.0),
            held(8, {0: (1, 2, 3)}, priority=10),
        )
        decided = plan(PlanningInput(nodes(1), running, (job(1, 1, 3),)), HOUR)
        assert [p.job for p in decided.preemptions] == [8]

    def test_equal_and_higher_priority_is_safe_without_a_better_index(self) -> None:
        for priority in (50, 90):
            running = (held(8, {0: FULL}, priority=priority, started_at=HOUR - US),)
            decided = plan(PlanningInput(nodes(1), running, (job(1, 1, 4),)), HOUR)
            assert decided.preemptions == ()

    def test_heroes_are_no_victims_of_their_own_priority(self) -> None:
        running = (held(8, {0: FULL}, attained_slot_s=1e7),)
        cluster = PlanningInput(nodes(1), running, (job(1, 1, 4),))
        assert len(plan(cluster, HOUR).preemptions) == 1
        large_job = replace(cluster, config=PlannerConfig(large_job_slots=3))
        assert plan(large_job, HOUR).preemptions == ()

    def test_a_reservation_belongs_to_its_owner_until_it_starts_or_times_out(self) -> None:
        running = (held(9, {0: FULL}, priority=10),)
        first = plan(PlanningInput(nodes(1), running, (job(1, 1, 4),)), HOUR)
        late = job(2, 1, 1, priority=90)
        requests = (job(1, 1, 4), late)
        after = PlanningInput(nodes(1), (), requests, reservations=first.reservations)
        assert started(plan(after, HOUR + US)) == [1]
        gone = plan(after, first.reservations[0].expires_at)
        assert started(gone) == [2]

    def test_nobody_slips_into_a_reservation_while_its_victims_save(self) -> None:
        history = History()
        history.num_observed = 100
        free_and_victim = (held(9, {1: FULL}, priority=10, save_s=300.0),)
        requests = (job(1, 2, 4, priority=90), job(2, 1, 1, remaining_s=5.0))
        decided = plan(PlanningInput(nodes(2), free_and_victim, requests, history=history), HOUR)
        assert decided.reservations[0].victims == (9,)
        assert started(decided) == []
        # The same slots, kept for nobody.
        alone = PlanningInput(nodes(2), free_and_victim, requests[1:], history=history)
        assert started(plan(alone, HOUR)) == [2]

    def test_a_job_of_which_nothing_is_known_is_never_a_victim(self) -> None:
        running = (held(9, {0: FULL}, priority=0, started_at=None),)
        assert (
            plan(PlanningInput(nodes(1), running, (job(1, 1, 4, priority=90),)), HOUR)
            .reservations[0]
            .victims
            == ()
        )


class TestReservations:
    RUNNING = (
        held(8, {0: FULL}, max_duration_s=7200.0, preemptible=False),
        held(9, {1: (0, 1)}, max_duration_s=7200.0, preemptible=False),
    )

    def test_short_jobs_fill_the_reservation_and_long_ones_do_not(self) -> None:
        head = job(1, 2, 4, max_duration_s=7200.0)
        short = job(2, 1, 2, priority=10, max_duration_s=1800.0)
        long = job(3, 1, 2, priority=10, max_duration_s=86_400.0)
        decided = plan(PlanningInput(nodes(2), self.RUNNING, (head, long, short)), HOUR)
        assert started(decided) == [2]
        decided = plan(PlanningInput(nodes(2), self.RUNNING, (head, long)), HOUR)
        assert started(decided) == []
        assert dict(decided.pending_reasons)[3].code is ReasonCode.WAITING_BEHIND

    def test_without_a_reservation_the_gang_is_overtaken(self) -> None:
        head = job(1, 2, 4)
        long = job(3, 1, 2, priority=10, max_duration_s=86_400.0)
        cluster = PlanningInput(
            nodes(2), self.RUNNING, (head, long), config=PlannerConfig(num_reservations=0)
        )
        assert started(plan(cluster, HOUR)) == [3]

    def test_nothing_is_backfilled_into_a_reservation_of_unknown_end(self) -> None:
        running = (held(8, {0: FULL}), held(9, {1: (0, 1)}))
        requests = (job(1, 2, 4), job(2, 1, 2, priority=10))
        assert plan(PlanningInput(nodes(2), running, requests), 60 * US).starts == ()


class TestElastic:
    def test_a_job_starts_smaller_rather_than_wait(self) -> None:
        requests = (job(1, 4, 4, min_nodes=2),)
        assert len(where(plan(PlanningInput(nodes(3), (), requests), 1), 1)) == 3
        assert plan(PlanningInput(nodes(1), (), requests), 1).starts == ()

    def test_it_grows_into_what_nobody_wants_and_shrinks_for_others(self) -> None:
        running = (held(8, {0: FULL}, min_nodes=1, max_nodes=2),)
        decided = plan(PlanningInput(nodes(2), running, ()), HOUR)
        assert [len(r.placement.shares) for r in decided.resizes] == [2]
        wide = (held(8, {0: FULL, 1: FULL}, min_nodes=1, max_nodes=2),)
        decided = plan(PlanningInput(nodes(2), wide, (job(1, 1, 4),)), HOUR)
        assert [len(r.placement.shares) for r in decided.resizes] == [1]
        assert decided.preemptions == ()

    def test_the_place_that_it_gives_up_counts_for_the_limit_of_who_gets_it(self) -> None:
        """Slots of a smaller job for one claim, slots of a victim for another: both of one project."""
        limited = Project("p", max_slots=8)
        running = (
            held(7, {0: (2, 3)}, priority=90, project="o"),
            held(8, {0: (0, 1), 1: (0, 1)}, project="p", min_nodes=1, max_nodes=2),
            held(9, {2: FULL}, priority=10, project="o"),
        )
        requests = (job(1, 1, 4, project="p"), job(2, 1, 4, project="p"))
        decided = plan(PlanningInput(nodes(3), running, requests, (limited, Project("o"))), HOUR)
        assert [len(r.placement.shares) for r in decided.resizes] == [1]
        assert [one.job for one in decided.reservations if one.victims] == [1]
        assert decided.preemptions == ()
        wider = replace(limited, max_slots=12)
        decided = plan(PlanningInput(nodes(3), running, requests, (wider, Project("o"))), HOUR)
        assert sorted(reservation.job for reservation in decided.reservations) == [1, 2]

    def test_it_does_not_resize_twice_within_the_cool_down(self) -> None:
        running = (held(8, {0: FULL}, min_nodes=1, max_nodes=2, resized_at=HOUR - US),)
        assert plan(PlanningInput(nodes(2), running, ()), HOUR).resizes == ()


class TestWhy:
    def test_it_names_what_binds_the_time_and_what_would_help(self) -> None:
        running = (held(8, {0: FULL}, priority=60, max_duration_s=7200.0),)
        pair = (*nodes(1), replace(nodes(2, pool="q")[1], num_slots=2))
        requests = (job(1, 1, 4, pools=("p",)), job(2, 1, 4, pools=("p",)))
        config = PlannerConfig(hysteresis=float("inf"))
        answer = why(PlanningInput(pair, running, requests, config=config), 2, HOUR)
        assert answer is not None
        assert (answer.position, answer.num_waiting) == (2, 2)
        assert answer.eta_p50_at is None  # j-1 has no known end
        first = why(PlanningInput(pair, running, requests, config=config), 1, HOUR)
        assert first is not None and first.eta_p50_at is not None
        assert abs(first.eta_p50_at - 2 * HOUR) < 60 * US
        assert [c.text for c in first.changes] == ["starts now at priority 70"]

    def test_a_smaller_gang_is_offered(self) -> None:
        running = (held(8, {0: (0, 1)}, priority=90),)
        answer = why(PlanningInput(nodes(1), running, (job(1, 1, 4),)), 1, HOUR)
        assert answer is not None
        assert "starts now with 2 slots on 1 node" in [c.text for c in answer.changes]

    def test_a_job_that_does_not_wait_has_no_answer(self) -> None:
        assert why(PlanningInput(nodes(1), (), ()), 1, 0) is None

    def test_impossible_requests_say_so(self) -> None:
        ((_, reason),) = plan(PlanningInput(nodes(1), (), (job(1, 1, 64),)), 1).pending_reasons
        assert reason.code is ReasonCode.UNPLACEABLE
        ((_, reason),) = plan(
            PlanningInput(nodes(1), (), (job(1, 1, 1, pools=("x",)),)), 1
        ).pending_reasons
        assert "no such pool: x" in reason.message
