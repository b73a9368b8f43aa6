"""A job of which a rank is killed again and again: the job machine and the schedule of saves together.

A model of one rank in pure time: starts, steps, saves in the background and kills at fixed times. The
job machine decides about restarts, the schedule about saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import DEFAULT_BUDGETS, Budget, RecoveryPolicy
from phalanx.core.jobs.desired import desired
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import Job, JobPolicy, JobState, NodeOutcome
from phalanx.core.reasons import Cause, ReasonCode
from phalanx.train.gang.context import RankInfo
from phalanx.train.step.save_schedule import SaveSchedule

pytestmark = pytest.mark.unit
S = 1_000_000
SIGKILL = 9


@dataclass(frozen=True)
class Model:
    """What a generation takes, and how often it is killed, in seconds."""

    period_s: float = 2.0
    start_s: float = 0.8
    step_s: float = 0.05
    stall_s: float = 0.005
    write_s: float = 0.05
    every: str = ""  # as in a spec
    num_steps: int = 400
    killed_for_s: float = 60.0


@dataclass
class Outcome:
    """How the job ended, or that it has completed its steps, and the time of it."""

    job: Job
    step: int
    at_s: float
    saves: int


def run(
    model: Model,
    recovery: RecoveryPolicy | None = None,
    told: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda times: times,
) -> Outcome:
    """Play the job until its last step, or until it fails. `told`: the failures that ranks know of."""
    policy = JobPolicy(GangShape(1, 1, 1), recovery or RecoveryPolicy())
    job = create(e.Submitted(1, policy), 0)
    placed = e.AttemptPlaced(1, Placement("local", (NodeShare("n", "n.host", (0,)),)))
    for event in (placed, e.NodeReady(1, 0, 4000)):
        job = decide(job, event, 0).job
    now_s, committed, saves = 0.0, 0, 0
    while True:
        orders = desired(job, 1, 0)
        job = decide(job, e.RanksStarted(1, orders.generation, 0), round(now_s * S)).job
        info = RankInfo(
            checkpoint=CheckpointPolicy(every=SaveInterval.parse(model.every)),
            restarts=orders.restarts,
            failed_at=told(orders.failed_at),
            job_started_at=0,
        )
        schedule = SaveSchedule(info, now_s, round(now_s * S))
        killed_at = (now_s // model.period_s + 1) * model.period_s
        killed_at = killed_at if killed_at < model.killed_for_s else float("inf")
        step, made, commit, at = committed, None, None, now_s + model.start_s
        while at + model.step_s <= killed_at:
            step, at = step + 1, at + model.step_s
            made = step
            if commit is not None and commit[0] <= at:
                committed, commit = commit[1], None
            if step >= model.num_steps:
                return Outcome(job, step, at, saves)
            if schedule.reason_at(step, schedule.proposes(at)) and commit is None:
                schedule.begin()
                at += model.stall_s
                saves, commit = saves + 1, (at + model.write_s, step)
                schedule.saved(
                    step,
                    now=at,
                    stall_s=model.stall_s,
                    write_s=model.write_s,
                    wall_us=round(at * S),
                )
        if commit is not None and commit[0] <= killed_at:
            committed = commit[1]
        now_s = killed_at
        failure = Failure(Cause.RANK_CRASH, 0, 0, round(now_s * S), "killed", signal=SIGKILL)
        ended = e.RanksEnded(
            1, orders.generation, 0, NodeOutcome.FAILED, 4000, step=made, failure=failure
        )
        job = decide(job, ended, round(now_s * S)).job
        if job.state is JobState.STOPPING:
            return Outcome(job, step, now_s, saves)
        if job.not_before is not None:
            now_s = job.not_before / S
            job = decide(job, e.BackoffElapsed(), job.not_before).job


@pytest.mark.parametrize("every", ["", "auto", "1000 steps", "3 epochs", "1h"])
def test_kills_every_two_seconds_for_ever_make_progress_and_the_job_ends_well(every: str) -> None:
    model = Model(every=every, killed_for_s=float("inf"))
    done = run(model)
    assert done.step == model.num_steps
    # The guard off: ranks that know of no failures save too late, and every generation repeats the last.
    without = run(model, told=lambda times: ())
    assert without.step < model.num_steps
    assert without.job.reason.code is ReasonCode.BUDGET_SPENT


def test_starts_that_never_reach_a_step_outlast_a_minute_of_kills() -> None:
    model = Model(start_s=3.0)
    assert run(model).step == model.num_steps
    # The guard off: three restarts, as after an exception of the script.
    crash = replace(DEFAULT_BUDGETS[Cause.RANK_CRASH], killed=None)
    without = run(model, RecoveryPolicy(budgets=((Cause.RANK_CRASH, crash),)))
    assert without.job.reason.code is ReasonCode.BUDGET_SPENT


@given(
    period_s=st.floats(1.0, 6.0),
    start_s=st.floats(0.1, 5.0),
    step_s=st.floats(0.01, 0.5),
    stall_s=st.floats(0.0, 0.1),
    write_s=st.floats(0.01, 0.5),
    every=st.sampled_from(["", "auto", "1000 steps", "20s"]),
)
def test_a_minute_of_kills_ends_no_job(
    period_s: float, start_s: float, step_s: float, stall_s: float, write_s: float, every: str
) -> None:
    model = Model(period_s, start_s, step_s, stall_s, write_s, every, num_steps=2000)
    assert run(model).step == model.num_steps


def test_calm_returns_to_the_planned_interval() -> None:
    # Kills for a minute, then an hour and a half in calm: nearly all saves are the planned ones.
    model = Model(every="10m", step_s=0.5, num_steps=10_800)
    done = run(model)
    assert done.step == model.num_steps
    planned = (done.at_s - model.killed_for_s) / 600
    rare = run(replace(model, period_s=1e9))
    assert rare.saves <= planned + 1
    assert done.saves <= 150


def test_a_limit_that_the_owner_sets_holds_for_kills_as_well() -> None:
    policy = RecoveryPolicy(budgets=((Cause.RANK_CRASH, Budget(count=1, per_s=3600.0)),))
    ended = run(Model(start_s=3.0), policy)
    assert ended.job.reason.code is ReasonCode.BUDGET_SPENT
    assert ended.job.restarts == 1
