"""Room below limits: who leaves for it, what is kept, and that limits hold while victims save."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.reasons import ReasonCode
from phalanx.core.scheduling import Plan, PlanningInput, Project, QueuedJob, Reservation, plan, why
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 600 * US
FULL = (0, 1, 2, 3)
LAB = Project("lab", max_slots=8)
PART = Project("part", parent="lab")
OTHER = Project("other")


def evicted(decided: Plan) -> list[int]:
    return sorted(one.job for one in decided.preemptions)


def message(decided: Plan, num: int) -> str:
    return dict(decided.pending_reasons)[num].message


class TestVictims:
    LOW = (
        running(7, {0: FULL}, priority=30, project="lab"),
        running(8, {1: (0, 1)}, priority=30, project="part", saved_at=NOW, save_s=10.0),
        running(9, {1: (2, 3)}, priority=30, project="lab"),
        running(6, {2: FULL}, priority=10, project="other"),
    )

    def asked(self, job: QueuedJob, *tree: Project, num_nodes: int = 6) -> Plan:
        return plan(
            PlanningInput(nodes(num_nodes), self.LOW, (job,), tree or (LAB, PART, OTHER)), NOW
        )

    def test_the_cheapest_of_its_project_leave_although_nodes_are_free(self) -> None:
        decided = self.asked(queued(1, 1, 2, 90, project="lab"))
        assert evicted(decided) == [8] and decided.starts == ()
        assert "j-8" in message(decided, 1)

    def test_no_more_leave_than_the_limit_demands(self) -> None:
        roomy = replace(LAB, max_slots=9)
        assert evicted(self.asked(queued(1, 1, 3, 90, project="lab"), roomy, PART, OTHER)) == [8]

    def test_nothing_leaves_for_an_equal_or_more_than_all_could_free(self) -> None:
        assert evicted(self.asked(queued(1, 1, 2, 30, project="lab"))) == []
        narrow = replace(PART, max_slots=3)
        assert evicted(self.asked(queued(1, 1, 4, 90, project="part"), LAB, narrow, OTHER)) == []

    def test_the_limit_of_a_part_takes_jobs_of_that_part(self) -> None:
        tree = (replace(LAB, max_slots=20), replace(PART, max_slots=2), OTHER)
        assert evicted(self.asked(queued(1, 1, 1, 90, project="part"), *tree)) == [8]

    def test_at_most_as_many_jobs_as_the_limit_allows(self) -> None:
        tree = (Project("lab", max_running=3), PART, OTHER)
        assert len(evicted(self.asked(queued(1, 1, 1, 90, project="lab"), *tree))) == 1

    def test_no_other_job_starts_below_the_limit_while_victims_save(self) -> None:
        both = (queued(1, 1, 1, 90, project="lab"), queued(2, 1, 1, 30, project="lab"))
        held = (running(7, {0: FULL, 1: FULL}, priority=30, project="lab"),)
        decided = plan(PlanningInput(nodes(6), held, both, (LAB, OTHER)), NOW)
        assert evicted(decided) == [7] and decided.starts == ()

    def test_an_owner_starts_once_its_victims_are_gone_and_not_before(self) -> None:
        kept = Reservation(1, ("n4",), NOW, NOW + 900 * US, (7,))
        saving = replace(self.LOW[0], stopping=True)
        asked = PlanningInput(
            nodes(6),
            (saving, *self.LOW[1:]),
            (queued(1, 1, 4, 90, project="lab"),),
            (LAB, PART, OTHER),
            (kept,),
        )
        assert plan(asked, NOW).starts == () and plan(asked, NOW).reservations == (kept,)
        gone = replace(asked, held=self.LOW[1:])
        assert [start.job for start in plan(gone, NOW).starts] == [1]


class TestReservation:
    HELD = (
        running(7, {0: FULL}, project="lab", preemptible=False, remaining_s=3600.0),
        running(8, {1: (0, 1)}, project="lab", preemptible=False, remaining_s=7200.0),
    )

    def asked(self, *jobs: QueuedJob, limit: int = 8) -> Plan:
        lab = replace(LAB, max_slots=limit)
        return plan(PlanningInput(nodes(6), self.HELD, jobs, (lab, OTHER)), NOW)

    def test_slots_below_the_limit_are_kept_for_a_gang(self) -> None:
        gang, small = queued(1, 3, 2, 60, project="lab"), queued(2, 1, 1, project="lab")
        decided = self.asked(gang, small)
        assert [(one.job, one.nodes) for one in decided.reservations] == [(1, ())]
        assert decided.reservations[0].ready_at == NOW + 3600 * US
        assert decided.starts == ()
        assert message(decided, 2) == (
            "the free slots of project lab are kept for j-1, which waits at its limit"
        )
        assert dict(decided.pending_reasons)[2].code is ReasonCode.WAITING_BEHIND

    def test_what_ends_in_time_or_fits_beside_the_gang_starts(self) -> None:
        gang = queued(1, 3, 2, 60, project="lab")
        for small, limit, starts in (
            (queued(2, 1, 1, project="lab", max_duration_s=1800.0), 8, [2]),
            (queued(2, 1, 1, project="lab", max_duration_s=7200.0), 8, []),
            (queued(2, 1, 1, project="lab"), 9, [2]),
            (queued(2, 1, 1, project="other"), 8, [2]),
        ):
            # At a limit of 9 one slot is left beside the gang and the job that ends after it starts.
            held = self.asked(gang, small, limit=limit)
            assert [start.job for start in held.starts] == starts, small

    def test_why_names_the_rule_and_what_would_help(self) -> None:
        gang, small = queued(1, 3, 2, 60, project="lab"), queued(2, 1, 1, project="lab")
        answer = why(PlanningInput(nodes(6), self.HELD, (gang, small), (LAB, OTHER)), 2, NOW)
        assert answer is not None
        assert "kept for j-1" in answer.reason.message
        assert any("max_duration" in change.text for change in answer.changes)


class TestElastic:
    def test_one_whose_full_size_exceeds_the_limit_starts_at_what_it_allows(self) -> None:
        job = queued(1, 4, 4, project="lab", min_nodes=1)
        (start,) = plan(PlanningInput(nodes(6), (), (job,), (LAB,)), NOW).starts
        assert len(start.placement.shares) == 2

    def test_one_that_may_not_be_preempted_gives_nothing(self) -> None:
        held = running(8, {0: FULL, 1: FULL}, priority=10, min_nodes=1, max_nodes=2)
        asked = PlanningInput(nodes(2), (held,), (queued(1, 1, 4, 90),))
        assert [one.job for one in plan(asked, NOW).resizes] == [8]
        fixed = replace(asked, held=(replace(held, preemptible=False),))
        assert plan(fixed, NOW).resizes == ()

    def test_at_a_limit_elastic_jobs_of_the_project_shrink_first(self) -> None:
        held = (
            running(8, {0: FULL, 1: FULL}, priority=10, project="lab", min_nodes=1, max_nodes=2),
            running(9, {2: FULL, 3: FULL}, priority=10, project="other", min_nodes=1, max_nodes=2),
        )
        job = queued(1, 1, 4, 90, project="lab")
        decided = plan(PlanningInput(nodes(5), held, (job,), (LAB, OTHER)), NOW)
        assert [one.job for one in decided.resizes if one.reason.message.startswith("gives")] == [8]
        assert decided.preemptions == ()


def test_the_next_pass_is_due_when_a_preferred_level_is_given_up() -> None:
    held = (running(8, {0: FULL}, priority=90),)
    job = queued(1, 1, 4, required="rack", required_until=NOW + 60 * US)
    assert plan(PlanningInput(nodes(1), held, (job,)), NOW).wake_at == NOW + 60 * US
