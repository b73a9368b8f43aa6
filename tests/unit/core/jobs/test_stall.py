"""Stacks on demand, and a stall that ends a generation only when every node's stacks are there."""

import pytest

from phalanx.core.gang.failures import Failure
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import Budget, RecoveryPolicy
from phalanx.core.jobs.desired import Action, desired
from phalanx.core.jobs.handlers.stall import STACKS_WAIT_S
from phalanx.core.jobs.machine import decide, due, wake_at
from phalanx.core.jobs.model import JobState, NodeOutcome, StopGoal
from phalanx.core.reasons import Cause
from unit.core.jobs.test_machine import DIED, NOW, UP, UP_2, S, play

pytestmark = pytest.mark.unit
HANGS = Failure(Cause.STALLED, 1, 0, NOW, "no step for 5 s")
STALLED = e.RanksStalled(1, 0, 0, HANGS)


def test_one_node_alone_ends_at_once():
    job = decide(play(*UP), STALLED, NOW).job
    assert job.state is JobState.RECOVERING and job.reason.code == "stalled"
    assert desired(job, 1, 0).action is Action.END


def test_before_anything_is_ended_every_node_is_asked_for_its_stacks():
    job = decide(play(*UP_2, nodes=2), STALLED, NOW).job
    assert job.state is JobState.RUNNING
    orders = [desired(job, 1, rank) for rank in (0, 1)]
    assert [(one.action, one.stacks) for one in orders] == [(Action.RUN, 1)] * 2
    assert decide(job, e.RanksStalled(1, 0, 1, HANGS), NOW).ignored
    assert decide(job, e.StacksCaptured(1, 0, 1, 0), NOW).ignored  # of its own accord, before
    job = decide(job, e.StacksCaptured(1, 0, 1, 1), NOW).job
    assert job.state is JobState.RECOVERING
    assert desired(job, 1, 1).action is Action.END


def test_a_node_that_does_not_answer_is_waited_for_only_so_long():
    job = decide(play(*UP_2, nodes=2), STALLED, NOW).job
    assert wake_at(job) == NOW + STACKS_WAIT_S * S and not due(job, NOW)
    (overdue,) = due(job, wake_at(job))
    assert decide(job, overdue, NOW).ignored
    job = decide(job, overdue, wake_at(job)).job
    assert job.state is JobState.RECOVERING and wake_at(job) is None
    assert job.reason.message == "no step for 5 s; nodes that have sent no stacks: 1"


def test_a_node_with_a_good_reason_drops_the_stall():
    job = decide(play(*UP_2, nodes=2), STALLED, NOW).job
    saving = e.StacksCaptured(1, 0, 1, 1, excuse="ranks are saving")
    job = decide(job, saving, NOW).job
    assert job.state is JobState.RUNNING and wake_at(job) is None
    assert (job.attempt.stall, job.attempt.stacks_of) == (None, ())
    assert decide(job, saving, NOW).ignored
    again = decide(job, STALLED, NOW).job
    assert desired(again, 1, 1).stacks == 2


def test_a_death_in_between_is_the_cause_and_the_next_generation_knows_nothing():
    job = decide(play(*UP_2, nodes=2), STALLED, NOW).job
    job = decide(job, e.RankFailed(1, 0, 1, DIED), NOW).job
    assert job.reason.code == "rank_crash" and wake_at(job) is None
    for rank in (0, 1):
        job = decide(job, e.RanksEnded(1, 0, rank, NodeOutcome.FAILED, 5000), NOW).job
    assert job.attempt.generation == 1
    assert (job.attempt.stacks, job.attempt.stall, job.attempt.stacks_of) == (0, None, ())


def test_a_stall_is_charged_to_its_own_budget():
    policy = RecoveryPolicy(budgets=((Cause.STALLED, Budget(count=1, first_wait_s=0.0)),))
    job = play(*UP, recovery=policy)
    for generation in range(2):
        job = decide(job, e.RanksStarted(1, generation, 0), NOW).job
        job = decide(job, e.RanksStalled(1, generation, 0, HANGS), NOW).job
        job = decide(job, e.RanksEnded(1, generation, 0, NodeOutcome.FAILED, 5000), NOW).job
    assert job.restarts == 1 and job.goal is StopGoal.FAIL
    assert job.reason.code == "budget_spent" and "stalled budget" in job.reason.message


def test_stacks_on_demand_change_nothing_else():
    before = play(*UP_2, nodes=2)
    job = decide(before, e.StacksRequested(), NOW).job
    assert (job.state, desired(job, 1, 1).stacks) == (JobState.RUNNING, 1)
    assert desired(decide(job, e.StacksRequested(), NOW).job, 1, 0).stacks == 2
    assert decide(job, e.StacksCaptured(1, 0, 1, 1), NOW).ignored
    assert decide(play(), e.StacksRequested(), NOW).ignored  # no rank runs yet
    stopping = decide(job, e.StopRequested(StopGoal.CANCEL), NOW).job
    asked = decide(stopping, e.StacksRequested(), NOW).job
    assert (desired(asked, 1, 0).action, desired(asked, 1, 0).stacks) == (Action.STOP, 2)
    assert decide(asked, STALLED, NOW).ignored
