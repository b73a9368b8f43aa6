"""The job machine, sentence by sentence: what one event does to one job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import RecoveryPolicy
from phalanx.core.jobs.desired import Action, desired
from phalanx.core.jobs.machine import STOP_SLACK_S, create, decide, due, wake_at
from phalanx.core.jobs.model import (
    Job,
    JobPolicy,
    JobState,
    KillAttempt,
    LaunchAttempt,
    NodeOutcome,
    StopGoal,
)
from phalanx.core.reasons import Cause, Reason, ReasonCode
from phalanx.errors import InvalidTransition, InvariantBroken

pytestmark = pytest.mark.unit

S = 1_000_000
NOW = 1_000 * S
DIED = Failure(Cause.RANK_CRASH, 1, 0, NOW, "rank 1 was killed by SIGKILL")


def placed_on(*nodes: str) -> Placement:
    return Placement("local", tuple(NodeShare(node, f"{node}.host", (0,)) for node in nodes))


def play(*events: e.JobEvent, nodes: int = 1, now: int = NOW, **terms: object) -> Job:
    shape = GangShape(nodes, 1, 1)
    job = create(e.Submitted(1, JobPolicy(shape, **terms)), now)
    placed = e.AttemptPlaced(1, placed_on(*(f"n{i}" for i in range(nodes))))
    for event in (placed, *events):
        job = decide(job, event, now).job
    return job


UP = (e.NodeReady(1, 0, 4000), e.RanksStarted(1, 0, 0))
UP_2 = (
    e.NodeReady(1, 0, 4000),
    e.NodeReady(1, 1, 4001),
    e.RanksStarted(1, 0, 0),
    e.RanksStarted(1, 0, 1),
)


def test_a_placement_launches_and_a_wrong_one_is_a_bug() -> None:
    job = create(e.Submitted(1, JobPolicy(GangShape(2, 1, 1))), NOW)
    decision = decide(job, e.AttemptPlaced(1, placed_on("a", "b")), NOW)
    assert decision.commands == (LaunchAttempt(1),)
    with pytest.raises(InvariantBroken, match="does not hold the gang"):
        decide(job, e.AttemptPlaced(1, placed_on("a")), NOW)
    assert decide(job, e.AttemptPlaced(2, placed_on("a", "b")), NOW).ignored


def test_a_generation_opens_when_every_node_is_ready() -> None:
    job = play(UP_2[0], nodes=2)
    assert desired(job, 1, 0).action is Action.WAIT
    job = decide(job, UP_2[1], NOW).job
    assert [desired(job, 1, rank).master_address for rank in (0, 1)] == ["n0.host", "n0.host"]
    assert [desired(job, 1, rank).master_port for rank in (0, 1)] == [4000, 4000]


def test_one_failure_ends_the_generation_everywhere_and_reopens_it_with_a_fresh_port() -> None:
    job = play(*UP_2, e.RankFailed(1, 0, 0, DIED), nodes=2)
    assert job.state is JobState.RECOVERING
    assert [desired(job, 1, rank).action for rank in (0, 1)] == [Action.END, Action.END]
    job = decide(job, e.RanksEnded(1, 0, 0, NodeOutcome.FAILED, 5000, step=7), NOW).job
    assert desired(job, 1, 0).action is Action.WAIT
    job = decide(job, e.RanksEnded(1, 0, 1, NodeOutcome.FAILED, 5001, step=7), NOW).job
    orders = desired(job, 1, 1)
    assert (orders.action, orders.generation, orders.master_port) == (Action.RUN, 1, 5000)
    assert (job.restarts, job.progress.high_water_step) == (1, 7)


def test_the_cause_is_the_earliest_failure_that_is_not_collateral() -> None:
    symptom = Failure(Cause.RANK_CRASH, 0, 1, NOW - 5 * S, "Connection reset", collateral=True)
    job = play(*UP_2, e.RankFailed(1, 0, 1, symptom), e.RankFailed(1, 0, 0, DIED), nodes=2)
    assert job.reason.message == DIED.message


def test_a_failure_that_comes_after_the_end_changes_nothing() -> None:
    ended = e.RanksEnded(1, 0, 0, NodeOutcome.SUCCEEDED, 5000, step=9)
    job = play(*UP, ended)
    late = decide(job, e.RankFailed(1, 0, 0, DIED), NOW)
    assert late.ignored and late.job.state is JobState.RUNNING
    done = decide(job, e.NodeReleased(1, 0), NOW).job
    assert (done.state, done.progress.high_water_step) == (JobState.SUCCEEDED, 9)


def test_a_failure_is_counted_once() -> None:
    job = play(*UP_2, e.RankFailed(1, 0, 0, DIED), nodes=2)
    assert decide(job, e.RankFailed(1, 0, 0, DIED), NOW).ignored


def test_ranks_that_end_without_a_word_count_as_a_crash() -> None:
    job = play(*UP, e.RanksEnded(1, 0, 0, NodeOutcome.FAILED, 5000))
    assert job.restarts == 1 and job.last_failure is not None
    assert job.last_failure.cause is Cause.RANK_CRASH


def test_exit_codes_decide_when_the_spec_says_so() -> None:
    policy = RecoveryPolicy(retry_codes=(33,), fail_codes=(2,))

    def after(code: int, cause: Cause) -> Job:
        failure = Failure(cause, 0, 0, NOW, "x", exit_code=code)
        ended = e.RanksEnded(1, 0, 0, NodeOutcome.FAILED, 5000, failure=failure)
        return play(*UP, ended, recovery=policy)

    assert after(2, Cause.RANK_CRASH).reason.code is ReasonCode.EXIT_CODE
    assert after(33, Cause.USER_ERROR).restarts == 1
    assert after(1, Cause.USER_ERROR).goal is StopGoal.FAIL


def test_exceptions_decide_when_the_spec_says_so_and_codes_count_first() -> None:
    policy = RecoveryPolicy(
        retry_codes=(33,),
        retry_exceptions=("ValueError",),
        fail_exceptions=("ConnectionError", "Broken"),
    )

    def after(exception: str, cause: Cause, code: int = 1) -> Job:
        failure = Failure(cause, 0, 0, NOW, "x", exit_code=code, exception=exception)
        ended = e.RanksEnded(1, 0, 0, NodeOutcome.FAILED, 5000, failure=failure)
        return play(*UP, ended, recovery=policy)

    final = after("ConnectionError", Cause.RANK_CRASH)
    assert final.reason.code is ReasonCode.EXIT_CODE
    assert "recovery.exceptions" in final.reason.message
    assert after("ValueError", Cause.USER_ERROR).restarts == 1
    assert after("KeyError", Cause.USER_ERROR).reason.code is ReasonCode.USER_ERROR
    assert after("Broken", Cause.RANK_CRASH, code=33).restarts == 1


def test_the_newest_failures_that_lost_work_are_in_the_orders() -> None:
    job = play(*UP)
    for generation in range(12):
        now = NOW + generation * S
        cause = Cause.DIVERGED if generation == 11 else Cause.RANK_CRASH
        failure = Failure(cause, 0, 0, now, "x", signal=9)
        event = e.RanksEnded(
            1, generation, 0, NodeOutcome.FAILED, 5000, step=generation, failure=failure
        )
        job = decide(job, event, now).job
        job = decide(job, e.RanksStarted(1, generation + 1, 0), now).job
    assert desired(job, 1, 0).failed_at == tuple(NOW + one * S for one in range(3, 11))


@pytest.mark.parametrize(
    ("failure", "restarts"),
    [({"signal": 9}, 8), ({"exit_code": 137}, 8), ({"exit_code": 1}, 3), ({"signal": 11}, 3)],
)
def test_kills_from_outside_have_a_limit_of_their_own(
    failure: dict[str, int], restarts: int
) -> None:
    job, now, waits = play(*UP), NOW, []
    for generation in range(20):
        event = e.RanksEnded(
            1,
            generation,
            0,
            NodeOutcome.FAILED,
            5000,
            failure=Failure(Cause.RANK_CRASH, 0, 0, now, "x", **failure),
        )
        job = decide(job, event, now).job
        if job.state is JobState.STOPPING:
            break
        if job.not_before is not None:
            waits.append((job.not_before - now) / S)
            now = job.not_before
            job = decide(job, e.BackoffElapsed(), now).job
        job = decide(job, e.RanksStarted(1, generation + 1, 0), now).job
    assert (job.reason.code, job.restarts) == (ReasonCode.BUDGET_SPENT, restarts)
    for at, waited in enumerate(waits):
        assert 0.8 * 2**at <= waited <= 1.2 * 2**at
    assert len({waited / 2**at for at, waited in enumerate(waits)}) == len(waits), "no two alike"


def test_stopping_asks_then_kills_then_waits_for_the_word_of_the_executor() -> None:
    job = play(*UP, e.StopRequested(StopGoal.CANCEL, grace_s=10))
    orders = desired(job, 1, 0)
    assert (orders.action, orders.deadline_at) == (Action.STOP, NOW + 10 * S)
    at = NOW + round((10 + STOP_SLACK_S) * S)
    assert wake_at(job) == at and due(job, at - 1) == ()
    (overdue,) = due(job, at)
    decision = decide(job, overdue, at)
    assert decision.commands == (KillAttempt(1),)
    assert wake_at(decision.job) == at + round(STOP_SLACK_S * S)  # and again, until it is confirmed
    assert decide(decision.job, e.NodeReleased(1, 0), at).job.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("first", "second", "goal"),
    [
        (StopGoal.PAUSE, StopGoal.CANCEL, StopGoal.CANCEL),
        (StopGoal.CANCEL, StopGoal.PAUSE, StopGoal.CANCEL),
        (StopGoal.REQUEUE, StopGoal.PAUSE, StopGoal.PAUSE),
    ],
)
def test_the_stronger_goal_wins_and_no_deadline_is_put_off(
    first: StopGoal, second: StopGoal, goal: StopGoal
) -> None:
    job = play(*UP, e.StopRequested(first, grace_s=10), e.StopRequested(second, grace_s=60))
    assert (job.goal, job.stop_deadline_at) == (goal, NOW + 10 * S)


def test_a_job_that_finishes_while_it_is_stopped_has_succeeded() -> None:
    ended = e.RanksEnded(1, 0, 0, NodeOutcome.SUCCEEDED, 5000)
    job = play(*UP, e.StopRequested(StopGoal.CANCEL), ended, e.NodeReleased(1, 0))
    assert job.state is JobState.SUCCEEDED


def test_a_time_limit_fails_the_job() -> None:
    job = play(*UP, max_duration_s=60.0)
    assert wake_at(job) == NOW + 60 * S
    (event,) = due(job, NOW + 60 * S)
    job = decide(job, event, NOW + 60 * S).job
    assert (job.goal, job.reason.code) == (StopGoal.FAIL, ReasonCode.MAX_DURATION)


def test_what_only_a_bug_can_produce_is_refused() -> None:
    job = play(*UP, e.StopRequested(StopGoal.CANCEL), e.NodeReleased(1, 0))
    assert job.state is JobState.CANCELLED
    with pytest.raises(InvalidTransition, match="job 1: StopRequested while cancelled"):
        decide(job, e.StopRequested(StopGoal.CANCEL), NOW)


def test_after_a_quarantine_the_job_still_knows_the_checkpoint_before() -> None:
    job = play(
        *UP, e.CheckpointCommitted(1, 0, 9, "/c/9"), e.CheckpointCommitted(1, 0, 12, "/c/12")
    )
    bad = e.CheckpointQuarantined(1, 0, "/c/12", "digest", left_path="/c/9", left_step=9)
    progress = decide(job, bad, NOW).job.progress
    assert (progress.checkpoint_path, progress.checkpoint_step) == ("/c/9", 9)
    other = e.CheckpointQuarantined(1, 0, "/c/3", "digest", left_path="/c/12", left_step=12)
    assert decide(job, other, NOW).job.progress.checkpoint_path == "/c/12"


def test_preemptions_of_the_last_hour_are_remembered_and_other_stops_are_not() -> None:
    def after(code: ReasonCode, goal: StopGoal, at: int, *known: int) -> tuple[int, ...]:
        job = replace(play(*UP), preempted_at=known)
        return decide(job, e.StopRequested(goal, Reason(code)), at).job.preempted_at

    hour = 3600 * S
    made_room = (ReasonCode.PREEMPTED, StopGoal.REQUEUE)
    assert after(*made_room, NOW) == (NOW,)
    assert after(*made_room, NOW + hour, NOW, NOW + 1) == (NOW, NOW + 1, NOW + hour)
    assert after(*made_room, NOW + hour + 1, NOW) == (NOW + hour + 1,)
    assert after(ReasonCode.RESIZED, StopGoal.REQUEUE, NOW) == ()
    assert after(ReasonCode.PREEMPTED, StopGoal.PAUSE, NOW) == ()
