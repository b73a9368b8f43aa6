"""The order of the queue, and what each verdict of a stage does to the rest of a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    plan,
)
from phalanx.core.scheduling.model.durations import History, KindKey, size_class
from phalanx.core.scheduling.stages import queue
from phalanx.core.scheduling.stages.queue import QueueHead, Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, pass_on, queued

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 100_000 * US


def waiting(
    *jobs: QueuedJob, projects: tuple[Project, ...] = (), config: PlannerConfig | None = None
) -> Pass:
    snapshot = PlanningInput(nodes(8), (), jobs, projects, config=config or PlannerConfig())
    return pass_on(snapshot, NOW)


def order(state: Pass, effect: Callable[[Pass, QueueHead], None] | None = None) -> list[int]:
    """The jobs in the order in which they are served; each is served, and `effect` says what that does."""
    seen: list[int] = []

    def stage(here: Pass, head: QueueHead) -> Verdict:
        seen.append(head.num)
        if effect is not None:
            effect(here, head)
        return Verdict.SERVED

    queue.serve(state, (stage,))
    return seen


def use(state: Pass, head: QueueHead) -> None:
    """Count the slots of a job that is served, as a start does."""
    job = state.cluster.waiting[head.num]
    state.ledger.use(job.project, job.num_slots, 1)


def one(num: int, priority: int = 50, **facts: object) -> QueuedJob:
    """A job of one slot that has entered the queue now."""
    return queued(num, 1, 1, priority, **{"queued_at": NOW, **facts})  # type: ignore[arg-type]


class TestOrder:
    @pytest.mark.parametrize(
        ("jobs", "expected"),
        [
            pytest.param((one(1, 50), one(2, 51)), [2, 1], id="priority"),
            pytest.param((one(2), one(1)), [1, 2], id="number"),
            pytest.param((one(1), one(2, queued_at=NOW - 1)), [2, 1], id="wait"),
            pytest.param((one(1), one(2, delayed_s=1.0)), [2, 1], id="earlier waits"),
            pytest.param(
                (one(1, remaining_s=9000.0), one(2, remaining_s=600.0)), [2, 1], id="shorter"
            ),
            pytest.param(
                (one(1, 51, remaining_s=9000.0), one(2, 50, remaining_s=600.0)),
                [1, 2],
                id="priority before urgency",
            ),
            pytest.param(
                (one(1, attained_slot_s=1e5), one(2)), [2, 1], id="less service without history"
            ),
            pytest.param(
                (one(1, remaining_s=600.0), one(2, remaining_s=9000.0, delayed_s=86_400.0 * 20)),
                [2, 1],
                id="a long wait outweighs",
            ),
        ],
    )
    def test_jobs_come_by_priority_then_urgency_then_arrival(
        self, jobs: tuple[QueuedJob, ...], expected: list[int]
    ) -> None:
        config = PlannerConfig(guard_after_s=1e12)
        assert order(waiting(*jobs, config=config)) == expected

    @pytest.mark.parametrize(
        ("priority", "waited_us", "expected"),
        [(50, 10 * US, [1, 2]), (50, 10 * US + 1, [2, 1]), (49, 10 * US + 1, [1, 2])],
        ids=["at the guard", "beyond it", "another priority"],
    )
    def test_a_guarded_job_is_first_within_its_priority(
        self, priority: int, waited_us: int, expected: list[int]
    ) -> None:
        urgent = one(1, remaining_s=60.0)
        starving = one(2, priority, remaining_s=1e6, queued_at=NOW - waited_us)
        config = PlannerConfig(guard_after_s=10.0)
        assert order(waiting(urgent, starving, config=config)) == expected

    def test_of_two_guarded_jobs_the_one_that_waits_longer_is_first(self) -> None:
        jobs = (
            one(1, remaining_s=60.0, queued_at=NOW - 20 * US),
            one(2, remaining_s=1e6, queued_at=NOW - 30 * US),
        )
        assert order(waiting(*jobs, config=PlannerConfig(guard_after_s=10.0))) == [2, 1]

    @pytest.mark.parametrize(("urgent", "first"), [(None, 2), (91, 2), (90, 1)])
    def test_an_urgent_priority_goes_before_guarantees(
        self, urgent: int | None, first: int
    ) -> None:
        projects = (Project("a"), Project("b", 4))
        jobs = (one(1, 90, project="a"), one(2, 10, project="b"))
        config = PlannerConfig(urgent_priority=urgent)
        assert order(waiting(*jobs, projects=projects, config=config))[0] == first

    def test_a_guarantee_goes_first_up_to_its_last_slot(self) -> None:
        projects = (Project("a"), Project("b", 2))
        jobs = (*(one(num, 90, project="a") for num in (1, 2)),)
        jobs += tuple(one(num, 10, project="b") for num in (11, 12, 13))
        state = waiting(*jobs, projects=projects)
        assert order(state, use) == [11, 12, 1, 13, 2]

    def test_projects_take_turns_by_what_they_use_for_their_weight(self) -> None:
        projects = (Project("a", weight=3.0), Project("b"))
        jobs = tuple(one(num, project="a") for num in range(1, 8))
        jobs += tuple(one(num, project="b") for num in (11, 12, 13))
        assert order(waiting(*jobs, projects=projects), use) == [1, 2, 3, 11, 4, 5, 6, 12, 7, 13]

    def test_past_use_counts_as_use_now(self) -> None:
        projects = (Project("a", past_slots=2.0), Project("b"))
        jobs = tuple(one(num, project="a") for num in (1, 2))
        jobs += tuple(one(num, project="b") for num in (11, 12, 13))
        assert order(waiting(*jobs, projects=projects), use) == [11, 12, 1, 13, 2]

    def test_a_class_whose_project_has_used_more_since_is_ranked_again(self) -> None:
        projects = (Project("a"), Project("b"))
        jobs = (one(1, 90, project="a"), one(2, 60, project="a"), one(3, 50, project="b"))
        assert order(waiting(*jobs, projects=projects), use) == [1, 3, 2]
        assert order(waiting(*jobs, projects=projects)) == [1, 2, 3]

    def test_parts_of_one_project_share_its_turn(self) -> None:
        projects = (Project("lab"), *(Project(name, parent="lab") for name in "xy"), Project("z"))
        jobs = (one(1, project="x"), one(2, project="y"), one(3, project="z"), one(4, project="z"))
        assert order(waiting(*jobs, projects=projects), use) == [3, 1, 4, 2]

    def test_a_request_beyond_the_share_comes_last_whatever_its_priority(self) -> None:
        projects = (Project("a", max_slots=1), Project("b"))
        beyond = queued(1, 1, 2, 90, project="a", queued_at=NOW)
        assert order(waiting(beyond, one(2, 10, project="b"), projects=projects)) == [2, 1]


class TestVerdicts:
    JOBS = (one(1), one(2), one(3), one(4, 10))

    def seen(self, state: Pass, verdicts: Mapping[int, Verdict]) -> list[tuple[int, int]]:
        """The number and the position of every job that is tried."""
        tried: list[tuple[int, int]] = []

        def stage(_: Pass, head: QueueHead) -> Verdict:
            tried.append((head.num, head.position))
            return verdicts.get(head.num, Verdict.SERVED)

        queue.serve(state, (stage,))
        return tried

    @pytest.mark.parametrize("last", [Verdict.BLOCKED, Verdict.OPEN])
    @pytest.mark.parametrize("num", [1, 2, 3])
    def test_a_job_that_is_not_served_ends_its_class_and_no_other(
        self, num: int, last: Verdict
    ) -> None:
        tried = self.seen(waiting(*self.JOBS), {num: last})
        assert tried == [(at + 1, at) for at in range(num)] + [(4, 0)]

    def test_a_job_with_a_reservation_or_a_start_is_passed_over(self) -> None:
        state = waiting(*self.JOBS)
        state.decisions.reservations.append(Reservation(1, ("n0",), None, NOW))
        state.decisions.started.add(3)
        assert self.seen(state, {}) == [(2, 1), (4, 0)]

    def test_a_class_of_started_jobs_only_is_not_served(self) -> None:
        state = waiting(*self.JOBS)
        state.decisions.started |= {1, 2, 3, 4}
        assert self.seen(state, {}) == []

    def test_an_open_verdict_hands_the_job_to_the_next_stage(self) -> None:
        calls: list[tuple[str, int]] = []

        def stage(name: str, verdict: Verdict) -> queue.JobStage:
            def call(_: Pass, head: QueueHead) -> Verdict:
                calls.append((name, head.num))
                return verdict

            return call

        stages = (
            stage("a", Verdict.OPEN),
            stage("b", Verdict.SERVED),
            stage("c", Verdict.BLOCKED),
        )
        queue.serve(waiting(one(1), one(2)), stages)
        assert calls == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]

    def test_the_head_says_since_when_its_job_is_owed_a_start(self) -> None:
        heads: list[tuple[int, int]] = []

        def stage(_: Pass, head: QueueHead) -> Verdict:
            heads.append((head.num, head.since))
            return Verdict.SERVED

        queue.serve(waiting(one(1), one(2, delayed_s=5.0)), (stage,))
        assert heads == [(2, NOW - 5 * US), (1, NOW)]

    def test_the_shape_of_a_role_makes_a_class_of_its_own(self) -> None:
        pair = one(1), one(2, roles=(GangShape(1, 1, 1),))
        state = waiting(*pair)
        assert len(state.cluster.classes) == 2
        assert len(self.seen(state, {1: Verdict.BLOCKED})) == 2


class TestOrderOfSizes:
    """Jobs that differ in nothing but the size of their gang start in the order of their submits."""

    @staticmethod
    def first(*jobs, history=None):
        """The first job that starts on four free slots."""
        decided = plan(
            PlanningInput(nodes(1), (), jobs, history=history or History()), 600 * 1_000_000
        )
        return decided.starts[0].job

    @staticmethod
    def job(num, slots, at_s, **more):
        return replace(queued(num, 1, slots, **more), submitted_at=at_s * 1_000_000)

    @pytest.mark.parametrize(("early", "late"), [(3, 4), (1, 4), (4, 3), (4, 1)])
    def test_the_earlier_submit_starts_first(self, early, late):
        assert self.first(self.job(1, early, 0), self.job(2, late, 6)) == 1
        # Whatever the numbers of the jobs are.
        assert self.first(self.job(9, early, 0), self.job(2, late, 6)) == 9

    @pytest.mark.parametrize("known", [1, 4])
    def test_that_jobs_of_one_size_have_ended_changes_nothing(self, known):
        history = History()
        for _ in range(30):
            history.observe(KindKey("", "", size_class(known)), 60.0)
        jobs = self.job(1, 3, 0), self.job(2, 4, 6)
        assert self.first(*jobs, history=history) == 1

    def test_the_same_limit_changes_nothing(self):
        jobs = (self.job(n, s, t, max_duration_s=600.0) for n, s, t in ((1, 4, 0), (2, 1, 6)))
        assert self.first(*jobs) == 1

    def test_a_job_that_is_known_to_be_short_still_goes_first(self):
        history = History()
        for _ in range(30):
            history.observe(KindKey("", "long", size_class(3)), 1e6)
            history.observe(KindKey("", "short", size_class(4)), 60.0)
        jobs = self.job(1, 3, 0, kind="long"), self.job(2, 4, 6, kind="short")
        assert self.first(*jobs, history=history) == 2

    def test_jobs_of_one_line_come_and_go(self):
        cluster = ClusterIndex.of(PlanningInput(nodes(1), (), ()))
        for num, slots, at_s in ((1, 3, 0), (2, 4, 6), (3, 3, 7)):
            cluster.submit(self.job(num, slots, at_s))
        assert len(cluster.class_of[2].line) == 2
        for num in (1, 3, 2):
            cluster.withdraw(num)
        assert not cluster._lines


@pytest.mark.parametrize(
    ("most", "starts", "expected"),
    [(1, (), [1, 3, 2]), (2, (), [1, 2, 3]), (1, (1,), [1, 2, 3])],
    ids=["one blocked", "two may be blocked", "the first starts"],
)
def test_only_blocked_overdue_gangs_count_against_their_number(
    most: int, starts: tuple[int, ...], expected: list[int]
) -> None:
    old = {"queued_at": NOW - 9000 * US}
    jobs = (
        queued(1, 2, 4, remaining_s=7000.0, delayed_s=1.0, kind="a", **old),
        queued(2, 2, 4, remaining_s=7000.0, kind="b", **old),
        one(3, remaining_s=1.0),
    )
    state = waiting(*jobs, config=PlannerConfig(num_overdue=most))
    seen: list[int] = []

    def stage(here: Pass, head: QueueHead) -> Verdict:
        seen.append(head.num)
        if head.num in starts:
            here.decisions.started.add(head.num)
        return Verdict.BLOCKED

    queue.serve(state, (stage,))
    assert seen == expected


def test_an_overdue_gang_of_another_priority_takes_no_place_of_this_one() -> None:
    old = {"queued_at": NOW - 9000 * US}
    jobs = (
        queued(1, 2, 4, 60, remaining_s=7000.0, **old),
        queued(2, 2, 4, remaining_s=7000.0, **old),
        one(3, remaining_s=1.0),
    )
    seen: list[int] = []

    def stage(here: Pass, head: QueueHead) -> Verdict:
        seen.append(head.num)
        return Verdict.BLOCKED

    queue.serve(waiting(*jobs, config=PlannerConfig(num_overdue=1)), (stage,))
    assert seen == [1, 2, 3]
