"""A trial's target in the job machine: raised in every state, reached, and raised as it is reached."""

from __future__ import annotations

import pytest

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import GangShape, NodeShare, Placement, RoleShape
from phalanx.core.jobs import events as e
from phalanx.core.jobs.desired import Action, desired
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import Job, JobPolicy, JobState, NodeOutcome, NodePhase, StopGoal
from phalanx.core.reasons import Cause, ReasonCode

pytestmark = pytest.mark.unit

S = 1_000_000
NOW = 1_000 * S


def play(job: Job, *events: e.JobEvent) -> Job:
    for event in events:
        job = decide(job, event, NOW).job
    return job


def trial(nodes: int = 1, **terms: object) -> Job:
    job = create(e.Submitted(1, JobPolicy(GangShape(nodes, 1, 1), **terms)), NOW)
    return play(job, *start(nodes, attempt=1))


def start(nodes: int, attempt: int) -> list[e.JobEvent]:
    shares = tuple(NodeShare(f"n{rank}", "h", (0,)) for rank in range(nodes))
    return [
        e.AttemptPlaced(attempt, Placement("local", shares)),
        *(e.NodeReady(attempt, rank, 4000 + rank) for rank in range(nodes)),
        *(e.RanksStarted(attempt, 0, rank) for rank in range(nodes)),
    ]


def at_target(rank: int = 0, target: int = 3) -> e.RanksEnded:
    return e.RanksEnded(1, 0, rank, NodeOutcome.AT_TARGET, 5000 + rank, step=9, target=target)


def test_a_trial_that_reaches_its_target_is_paused_without_a_restart() -> None:
    job = play(trial(), at_target())
    assert (job.state, job.goal) == (JobState.STOPPING, StopGoal.PAUSE)
    assert desired(job, 1, 0).action is Action.RELEASE
    job = play(job, e.NodeReleased(1, 0))
    assert (job.state, job.reason.code) == (JobState.PAUSED, ReasonCode.TARGET_REACHED)
    assert (job.restarts, job.attempt, job.progress.high_water_step) == (0, None, 9)


def test_all_nodes_leave_before_the_trial_is_paused() -> None:
    job = play(trial(2), at_target(0))
    assert job.state is JobState.RUNNING
    assert play(job, at_target(1)).state is JobState.STOPPING


def test_a_failure_of_another_node_is_a_failure_all_the_same() -> None:
    died = Failure(Cause.RANK_CRASH, 1, 1, NOW, "rank 1 was killed by SIGKILL")
    ended = e.RanksEnded(1, 0, 1, NodeOutcome.FAILED, 5001, failure=died)
    job = play(trial(2), at_target(0), ended)
    assert (job.restarts, job.goal) == (1, None)


def test_a_raised_target_reaches_supervisors_and_never_falls() -> None:
    job = play(trial(), e.TargetRaised(9))
    assert desired(job, 1, 0).until == 9
    for lower in (9, 3):
        assert decide(job, e.TargetRaised(lower), NOW).ignored == "the target is 9 already"


def test_a_target_that_is_raised_while_nodes_leave_continues_on_the_same_slots() -> None:
    job = play(trial(2), at_target(0), e.TargetRaised(9), at_target(1))
    assert (job.state, job.restarts) == (JobState.RUNNING, 0)
    orders = desired(job, 1, 0)
    assert (orders.action, orders.generation, orders.until) == (Action.RUN, 1, 9)


def test_a_target_that_is_raised_while_the_trial_pauses_puts_it_back_into_the_queue() -> None:
    job = play(trial(), at_target(), e.TargetRaised(9))
    assert (job.state, job.goal) == (JobState.STOPPING, StopGoal.REQUEUE)
    job = play(job, e.NodeReleased(1, 0))
    assert (job.state, job.reason.code) == (JobState.QUEUED, ReasonCode.RESUME_REQUESTED)
    assert desired(play(job, *start(1, attempt=2)), 2, 0).until == 9


def test_a_raised_target_resumes_a_trial_that_paused_there() -> None:
    job = play(trial(), at_target(), e.NodeReleased(1, 0), e.TargetRaised(9))
    assert (job.state, job.until, job.queued_at) == (JobState.QUEUED, 9, NOW)


def test_a_trial_that_was_paused_on_request_waits_for_the_request_to_resume() -> None:
    asked = e.StopRequested(StopGoal.PAUSE)
    ended = e.RanksEnded(1, 0, 0, NodeOutcome.STOPPED, 5000, step=9)
    job = play(trial(), asked, ended, e.NodeReleased(1, 0), e.TargetRaised(9))
    assert (job.state, job.until) == (JobState.PAUSED, 9)
    assert play(job, e.Resumed()).state is JobState.QUEUED


def test_a_cancelled_trial_stays_cancelled() -> None:
    job = play(trial(), at_target(), e.StopRequested(StopGoal.CANCEL), e.TargetRaised(9))
    job = play(job, e.NodeReleased(1, 0))
    assert job.state is JobState.CANCELLED
    assert decide(job, e.TargetRaised(27), NOW).ignored == "the job is over"


def test_a_queued_trial_starts_with_its_raised_target() -> None:
    job = create(e.Submitted(1, JobPolicy(GangShape(1, 1, 1))), NOW)
    job = play(job, e.TargetRaised(9), *start(1, attempt=1))
    assert desired(job, 1, 0).until == 9


def test_other_roles_are_asked_to_stop_when_the_first_one_has_reached_the_target() -> None:
    roles = (RoleShape(nodes=1, slots_per_node=1, ranks_per_node=1, name="evaluator"),)
    job = create(e.Submitted(1, JobPolicy(GangShape(1, 1, 1), roles=roles, grace_s=9.0)), NOW)
    job = play(job, *start(2, attempt=1), at_target(0))
    assert job.attempt is not None
    assert job.attempt.nodes[1].phase is NodePhase.UP
    orders = desired(job, 1, 1)
    assert (orders.action, orders.deadline_at) == (Action.STOP, NOW + 9 * S)
