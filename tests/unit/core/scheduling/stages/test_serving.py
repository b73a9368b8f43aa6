"""The stages that serve one job, called one at a time on a pass."""

from __future__ import annotations

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import PlannerConfig, PlanningInput, Project, QueuedJob, RunningJob
from phalanx.core.scheduling.stages import queue, reservations, serving
from phalanx.core.scheduling.stages.queue import QueueHead, Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support import clusters

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 10_000 * US


def pass_on(
    *queued: QueuedJob,
    running: tuple[RunningJob, ...] = (),
    projects: tuple[Project, ...] = (),
    config: PlannerConfig | None = None,
) -> Pass:
    nodes = clusters.nodes(2, domains=())
    snapshot = PlanningInput(nodes, running, queued, projects, config=config or PlannerConfig())
    return clusters.pass_on(snapshot, NOW)


def head_of(state: Pass, num: int = 1) -> QueueHead:
    eq_class = state.cluster.class_of[num]
    return QueueHead(eq_class, 0, eq_class.jobs[0][0], num)


def job(num: int = 1, nodes: int = 1, slots: int = 4, priority: int = 50) -> QueuedJob:
    return QueuedJob(num, GangShape(nodes, slots, slots), priority, 0, project="p")


def running(num: int, node: int, priority: int = 10) -> RunningJob:
    return clusters.running(num, {node: (0, 1, 2, 3)}, priority=priority)


class TestQuota:
    def test_a_limit_blocks_the_class_with_a_reason(self) -> None:
        state = pass_on(job(), projects=(Project("p", max_slots=3),))
        assert serving.quota(state, head_of(state)) is Verdict.BLOCKED
        ((_, reason),) = state.decisions.limited
        assert reason.code is ReasonCode.WAITING_FOR_QUOTA

    def test_what_fits_the_limit_is_left_to_the_next_stage(self) -> None:
        state = pass_on(job(), projects=(Project("p", max_slots=4),))
        assert serving.quota(state, head_of(state)) is Verdict.OPEN
        state.ledger.use("p", 1, 1)
        assert serving.quota(state, head_of(state)) is Verdict.BLOCKED


class TestRunningJobs:
    def test_a_limit_on_running_jobs_blocks_the_class_with_a_reason(self) -> None:
        held = RunningJob(7, running(7, 0).placement, project="p", preemptible=False)
        state = pass_on(job(), running=(held,), projects=(Project("p", max_running=1),))
        assert serving.quota(state, head_of(state)) is Verdict.BLOCKED
        ((_, reason),) = state.decisions.limited
        assert reason == Reason(ReasonCode.WAITING_FOR_QUOTA, "project p runs 1 jobs of at most 1")

    def test_a_start_and_the_owner_of_a_reservation_take_a_place(self) -> None:
        projects = (Project("p", max_running=2),)
        state = pass_on(job(1), job(2), running=(running(7, 0),), projects=projects)
        assert serving.place(state, head_of(state)) is Verdict.SERVED
        assert serving.quota(state, head_of(state, 2)) is Verdict.OPEN
        serving.shrink(state, head := head_of(state, 2))
        assert serving.preempt(state, head) is Verdict.SERVED
        assert serving.quota(state, head_of(state, 2)) is Verdict.BLOCKED

    def test_a_preempted_job_counts_until_it_is_gone(self) -> None:
        """Else another job of its project could start while it saves: one more than the limit."""
        held = RunningJob(7, running(7, 0).placement, priority=10, project="p", started_at=0)
        urgent = QueuedJob(2, GangShape(2, 4, 4), 90, 0, project="q")
        projects = (Project("p", max_running=1), Project("q", guaranteed_slots=8))
        state = pass_on(job(), urgent, running=(held,), projects=projects)
        serving.shrink(state, head := head_of(state, 2))
        assert serving.preempt(state, head) is Verdict.SERVED
        assert state.decisions.leaving == {7}
        assert serving.quota(state, head_of(state)) is Verdict.BLOCKED

    def test_a_limit_counts_the_jobs_of_all_parts(self) -> None:
        held = RunningJob(7, running(7, 0).placement, project="q", preemptible=False)
        projects = (Project("lab", max_running=1), Project("q", parent="lab"))
        state = pass_on(job(), running=(held,), projects=(*projects, Project("p", parent="lab")))
        assert serving.quota(state, head_of(state)) is Verdict.BLOCKED
        ((_, reason),) = state.decisions.limited
        assert "project lab, which p is part of, runs 1 jobs" in reason.message

    def test_jobs_beyond_the_limit_are_no_demand(self) -> None:
        """Else the idle part of a limited project would not count as surplus of the others."""
        queued = [job(num, slots=2) for num in (1, 2, 3)]
        free = pass_on(*queued, projects=(Project("p"),))
        limited = pass_on(*queued, projects=(Project("p", max_running=1),))
        assert free.ledger.shares["p"].entitled == 6.0
        assert limited.ledger.shares["p"].entitled == 2.0


class TestPlace:
    def test_a_start_takes_the_slots_and_counts_for_its_project(self) -> None:
        state = pass_on(job(nodes=2))
        assert serving.place(state, head_of(state)) is Verdict.SERVED
        assert [start.job for start in state.decisions.starts] == [1]
        assert sum(state.index.num_free) == 0
        assert state.ledger.used["p"] == 8

    def test_without_room_nothing_is_decided_and_the_request_is_remembered(self) -> None:
        state = pass_on(job(nodes=2), running=(running(7, 0),))
        assert serving.place(state, head_of(state)) is Verdict.OPEN
        assert not state.decisions.starts
        assert state.no_room == {head_of(state).eq_class.request_num}


class TestPreempt:
    def test_the_cheapest_victim_leaves_and_its_node_is_reserved(self) -> None:
        state = pass_on(job(), running=(running(7, 0), running(8, 1, priority=90)))
        head = head_of(state)
        assert serving.shrink(state, head) is Verdict.OPEN
        assert serving.preempt(state, head) is Verdict.SERVED
        assert [one.job for one in state.decisions.preemptions] == [7]
        (reservation,) = state.decisions.reservations
        assert (reservation.nodes, reservation.victims) == (("n0",), (7,))
        assert state.decisions.leaving == {7}
        assert state.decisions.reasons[1].code is ReasonCode.WAITING_FOR_VICTIMS

    def test_a_budget_that_is_used_up_ends_the_search(self) -> None:
        config = PlannerConfig(preemption_budget=0)
        state = pass_on(job(), running=(running(7, 0), running(8, 1)), config=config)
        head = head_of(state)
        assert serving.shrink(state, head) is Verdict.OPEN
        assert serving.preempt(state, head) is Verdict.OPEN
        assert not state.decisions.preemptions

    def test_a_search_in_vain_is_not_repeated(self) -> None:
        state = pass_on(job(priority=5), running=(running(7, 0), running(8, 1)))
        head = head_of(state)
        serving.shrink(state, head)
        assert serving.preempt(state, head) is Verdict.OPEN
        assert state.victims.fruitless == {("p", 5, head.eq_class.request_num)}


class TestReserve:
    def test_a_blocked_gang_gets_the_nodes_that_are_free_first(self) -> None:
        late, soon = running(7, 0, 90), running(8, 1, 90)
        ends = {"max_duration_s": 20_000.0}
        held = (
            RunningJob(7, late.placement, priority=90, started_at=0, **ends),
            RunningJob(8, soon.placement, priority=90, started_at=0, max_duration_s=11_000.0),
        )
        state = pass_on(job(), running=held)
        assert reservations.reserve(state, head_of(state)) is Verdict.BLOCKED
        (kept,) = state.decisions.reservations
        assert (kept.nodes, kept.ready_at) == (("n1",), 11_000 * US)

    def test_no_more_reservations_than_allowed(self) -> None:
        config = PlannerConfig(num_reservations=0)
        state = pass_on(job(), running=(running(7, 0), running(8, 1)), config=config)
        assert reservations.reserve(state, head_of(state)) is Verdict.BLOCKED
        assert not state.decisions.reservations
        assert state.decisions.blocked


def test_the_queue_is_served_by_priority_and_a_stage_that_decides_ends_its_turn() -> None:
    state = pass_on(job(1, priority=10), job(2, priority=60), job(3, priority=60))
    seen: list[tuple[str, int]] = []

    def first(_: Pass, head: QueueHead) -> Verdict:
        seen.append(("first", head.num))
        return Verdict.SERVED if head.num != 1 else Verdict.OPEN

    def last(_: Pass, head: QueueHead) -> Verdict:
        seen.append(("last", head.num))
        return Verdict.BLOCKED

    queue.serve(state, (first, last))
    assert seen == [("first", 2), ("first", 3), ("first", 1), ("last", 1)]
