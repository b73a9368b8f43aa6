"""Dependencies of a job: what meets them, what cancels the job, and cycles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.dependencies import Dependency, DependencyKind, find_cycle, waiting_text
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import Job, JobPolicy, JobState, StopGoal
from phalanx.core.reasons import ReasonCode

pytestmark = pytest.mark.unit

K, S = DependencyKind, JobState
NOW = 1_000_000


def a_job(*waits_for: tuple[int, K]) -> Job:
    wanted = tuple(Dependency(num, kind) for num, kind in waits_for)
    return create(e.Submitted(9, JobPolicy(GangShape(1, 1, 1)), wanted), NOW)


@pytest.mark.parametrize(
    ("kind", "end", "state"),
    [
        (K.AFTER, S.SUCCEEDED, S.QUEUED),
        (K.AFTER, S.CANCELLED, S.QUEUED),
        (K.AFTERANY, S.FAILED, S.QUEUED),
        (K.AFTEROK, S.SUCCEEDED, S.QUEUED),
        (K.AFTEROK, S.FAILED, S.CANCELLED),
        (K.AFTEROK, S.CANCELLED, S.CANCELLED),
        (K.AFTERNOTOK, S.FAILED, S.QUEUED),
        (K.AFTERNOTOK, S.CANCELLED, S.QUEUED),
        (K.AFTERNOTOK, S.SUCCEEDED, S.CANCELLED),
    ],
)
def test_the_end_of_a_job_meets_a_dependency_or_ends_the_other(
    kind: K, end: JobState, state: JobState
) -> None:
    job = a_job((3, kind))
    assert job.state is S.WAITING
    after = decide(job, e.DependencyEnded(3, end), NOW + 5).job
    assert after.state is state
    if state is S.CANCELLED:
        assert after.reason.code is ReasonCode.DEPENDENCY_FAILED
        assert "j-3" in after.reason.message and kind in after.reason.message
        assert after.ended_at == NOW + 5
    else:
        assert after.queued_at == NOW + 5 and not after.waits_for


def test_a_start_meets_after_alone() -> None:
    job = a_job((3, K.AFTER), (3, K.AFTEROK), (4, K.AFTER))
    job = decide(job, e.DependencyStarted(3), NOW).job
    assert [str(one) for one in job.waits_for] == ["j-3 to succeed", "j-4 to start"]
    assert job.reason.message == "waits for j-3 to succeed, j-4 to start"
    assert decide(job, e.DependencyStarted(3), NOW).ignored is not None


def test_a_paused_job_goes_on_waiting_when_it_is_resumed() -> None:
    job = decide(a_job((3, K.AFTEROK), (4, K.AFTERANY)), e.StopRequested(StopGoal.PAUSE), NOW).job
    job = decide(job, e.DependencyEnded(4, S.FAILED), NOW).job
    assert job.state is S.PAUSED
    job = decide(job, e.Resumed(), NOW).job
    assert job.state is S.WAITING and job.reason.message == "waits for j-3 to succeed"
    paused = decide(job, e.StopRequested(StopGoal.PAUSE), NOW).job
    assert decide(paused, e.DependencyEnded(3, S.FAILED), NOW).job.state is S.CANCELLED


def test_a_waiting_job_takes_no_placement() -> None:
    placed = e.AttemptPlaced(1, Placement("p", (NodeShare("n", "h", (0,)),)))
    assert decide(a_job((3, K.AFTER)), placed, NOW).ignored is not None


def test_many_names_are_shortened() -> None:
    text = waiting_text([Dependency(num, K.AFTERANY) for num in range(1, 9)])
    assert text.endswith("j-5 to end and 3 more")


def test_a_queued_job_ignores_what_it_does_not_wait_for() -> None:
    job = replace(a_job(), state=S.QUEUED)
    assert decide(job, e.DependencyEnded(3, S.FAILED), NOW).ignored is not None


def test_cycles_are_found_and_diamonds_are_none() -> None:
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert find_cycle({"a": ["a"]}) == ["a", "a"]
    assert find_cycle({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
    long = {str(n): [str(n + 1)] for n in range(5000)}
    assert find_cycle(long) == []
