"""The job machine of a gang with several roles: one start, one end, and roles that need not be there."""

from __future__ import annotations

import pytest

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import GangShape, NodeShare, Placement, RoleShape
from phalanx.core.gang.roles import node_of_rank, world_of
from phalanx.core.jobs import events as e
from phalanx.core.jobs.desired import Action, desired
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import Job, JobPolicy, JobState, NodeOutcome, StopGoal
from phalanx.core.reasons import Cause
from phalanx.errors import InvariantBroken

pytestmark = pytest.mark.unit

S = 1_000_000
NOW = 1_000 * S
WHERE = Placement("p", tuple(NodeShare(f"n{i}", f"h{i}", (0,) * (i < 3)) for i in range(4)))
"""Node rank 0 is the learner's, 1 and 2 are the actors', 3 is the server's."""


def gang(*, actors_required: bool = False) -> Job:
    roles = (
        RoleShape(2, 1, 1, "actor", required=actors_required),
        RoleShape(1, 0, 1, "server", required=False),
    )
    return placed(JobPolicy(GangShape(1, 1, 2), role="learner", roles=roles, grace_s=20.0))


def placed(policy: JobPolicy) -> Job:
    job = create(e.Submitted(1, policy), NOW)
    events = [e.AttemptPlaced(1, WHERE)]
    events += [e.NodeReady(1, rank, 4000 + rank) for rank in range(4)]
    events += [e.RanksStarted(1, 0, rank) for rank in range(4)]
    for event in events:
        job = decide(job, event, NOW).job
    assert job.state is JobState.RUNNING
    return job


def ended(job: Job, rank: int, outcome: NodeOutcome, failure: Failure | None = None) -> Job:
    return decide(job, e.RanksEnded(1, 0, rank, outcome, 5000 + rank, failure=failure), NOW).job


def died(rank: int) -> Failure:
    return Failure(Cause.RANK_CRASH, rank, rank, NOW, "killed")


def test_ranks_and_nodes_are_counted_role_after_role() -> None:
    learner, actor, server = gang().policy.parts()
    assert (list(learner.ranks), list(actor.ranks), list(server.ranks)) == ([0, 1], [2, 3], [4])
    assert (list(actor.nodes), list(actor.node_ranks(2))) == ([1, 2], [3])


def test_every_role_meets_at_its_own_first_node() -> None:
    orders = [desired(gang(), 1, rank) for rank in range(4)]
    assert [one.master_address for one in orders] == ["h0", "h1", "h1", "h3"]
    assert [one.master_port for one in orders] == [4000, 4001, 4001, 4003]
    assert orders[0].masters == (
        ("learner", "h0", 4000),
        ("actor", "h1", 4001),
        ("server", "h3", 4003),
    )


def shared() -> Job:
    """One world: a node with two ranks and two with one; the evaluator is beside it."""
    roles = (
        RoleShape(2, 1, 1, "worker", shares_world=True),
        RoleShape(1, 0, 1, "evaluator", required=False),
    )
    return placed(JobPolicy(GangShape(1, 1, 2), role="master", roles=roles, grace_s=20.0))


def test_a_shared_world_meets_at_the_first_node_and_counts_its_ranks_through() -> None:
    job = shared()
    orders = [desired(job, 1, rank) for rank in range(4)]
    assert [one.master_address for one in orders] == ["h0", "h0", "h0", "h3"]
    assert [one.master_port for one in orders] == [4000, 4000, 4000, 4003]
    master, worker, evaluator = parts = job.policy.parts()
    assert (list(worker.ranks_in_world), list(evaluator.ranks_in_world)) == ([2, 3], [0])
    assert world_of(parts, worker) == (master, worker) == world_of(parts, master)
    assert world_of(parts, evaluator) == (evaluator,)
    assert [node_of_rank(parts, rank) for rank in range(6)] == [0, 0, 1, 2, 3, None]


def test_a_shared_world_fails_and_reaches_its_target_as_a_whole() -> None:
    job = decide(shared(), e.RankFailed(1, 0, 2, died(2)), NOW).job
    assert job.state is JobState.RECOVERING
    assert {desired(job, 1, rank).action for rank in range(4)} == {Action.END}
    job = shared()
    for rank in range(3):
        assert job.state is JobState.RUNNING
        event = e.RanksEnded(1, 0, rank, NodeOutcome.AT_TARGET, 5000 + rank, target=3)
        job = decide(job, event, NOW).job
    assert (job.state, job.goal) == (JobState.STOPPING, StopGoal.PAUSE)


def test_a_role_cannot_share_a_world_across_another_one() -> None:
    roles = (RoleShape(1, 1, 1, "a"), RoleShape(1, 1, 1, "b", shares_world=True))
    with pytest.raises(InvariantBroken, match="role b is apart"):
        JobPolicy(GangShape(1, 1, 1), roles=roles).parts()


def test_every_node_knows_the_addresses_of_the_gangs_nodes() -> None:
    assert desired(gang(), 1, 0).peers == ("h0", "h1", "h2", "h3")
    job = create(e.Submitted(1, gang().policy), NOW)
    job = decide(job, e.AttemptPlaced(1, WHERE), NOW).job
    for rank in range(4):
        job = decide(job, e.NodeReady(1, rank, 4000 + rank, (f"10.0.0.{rank}",)), NOW).job
    reported = {f"10.0.0.{rank}" for rank in range(4)}
    assert set(desired(job, 1, 2).peers) == {"h0", "h1", "h2", "h3"} | reported


def test_a_placement_without_one_of_the_roles_is_a_bug() -> None:
    job = create(e.Submitted(1, gang().policy), NOW)
    with pytest.raises(InvariantBroken, match="does not hold the gang"):
        decide(job, e.AttemptPlaced(1, Placement("p", WHERE.shares[:3])), NOW)


def test_a_required_role_takes_all_others_with_it() -> None:
    job = decide(gang(actors_required=True), e.RankFailed(1, 0, 2, died(2)), NOW).job
    assert job.state is JobState.RECOVERING
    assert {desired(job, 1, rank).action for rank in range(4)} == {Action.END}


def test_a_role_that_is_not_required_ends_alone_and_as_a_whole() -> None:
    job = gang()
    assert decide(job, e.RankFailed(1, 0, 2, died(2)), NOW).ignored
    job = ended(job, 2, NodeOutcome.FAILED, died(2))
    assert (job.state, job.restarts, job.attempt and job.attempt.failures) == (
        JobState.RUNNING,
        0,
        (),
    )
    assert [desired(job, 1, rank).action for rank in range(4)] == [
        Action.RUN,
        Action.END,
        Action.WAIT,
        Action.RUN,
    ]


def test_it_begins_again_with_the_next_generation() -> None:
    job = ended(gang(), 2, NodeOutcome.FAILED, died(2))
    job = decide(job, e.RankFailed(1, 0, 0, died(0)), NOW).job
    for rank in (0, 1, 3):
        job = ended(job, rank, NodeOutcome.FAILED)
    assert job.attempt is not None and job.attempt.generation == 1
    assert {desired(job, 1, rank).action for rank in range(4)} == {Action.RUN}


def test_the_job_is_done_when_everything_required_is_and_the_rest_gets_the_grace() -> None:
    job = ended(gang(), 0, NodeOutcome.SUCCEEDED)
    orders = [desired(job, 1, rank) for rank in range(4)]
    assert {one.action for one in orders} == {Action.RELEASE}
    assert orders[3].deadline_at == NOW + 20 * S
    for rank in (1, 2, 3):
        job = ended(job, rank, NodeOutcome.STOPPED)
    for rank in range(4):
        job = decide(job, e.NodeReleased(1, rank), NOW).job
    assert (job.state, job.restarts) == (JobState.SUCCEEDED, 0)


def test_while_something_required_runs_nobody_is_released() -> None:
    job = ended(gang(actors_required=True), 0, NodeOutcome.SUCCEEDED)
    assert [desired(job, 1, rank).action for rank in range(1, 4)] == [Action.RUN] * 3
    job = ended(ended(job, 1, NodeOutcome.SUCCEEDED), 2, NodeOutcome.SUCCEEDED)
    assert desired(job, 1, 3).action is Action.RELEASE
