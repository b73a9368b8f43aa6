"""The job machine under any order of events: late, repeated, of other attempts and generations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.codec import decode, encode
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import GangShape, NodeShare, Placement, RoleShape
from phalanx.core.gang.roles import part_at
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import Budget, RecoveryPolicy
from phalanx.core.jobs.dependencies import Dependency, DependencyKind
from phalanx.core.jobs.desired import Action, desired
from phalanx.core.jobs.machine import TRANSITIONS, create, decide, due, rebuild, wake_at
from phalanx.core.jobs.model import (
    HOLDING,
    TERMINAL,
    Attempt,
    Job,
    JobPolicy,
    JobState,
    LaunchAttempt,
    NodeOutcome,
    NodePhase,
    StopGoal,
)
from phalanx.core.reasons import Cause
from phalanx.errors import InvalidTransition

pytestmark = pytest.mark.unit

S = JobState
ALLOWED = {
    S.WAITING: {S.QUEUED, S.PAUSED, S.CANCELLED, S.FAILED},
    S.QUEUED: {S.STARTING, S.PAUSED, S.CANCELLED, S.FAILED},
    S.STARTING: {S.RUNNING, S.QUEUED, S.FAILED, S.STOPPING, S.RECOVERING},
    S.RUNNING: {S.SUCCEEDED, S.FAILED, S.RECOVERING, S.STOPPING},
    S.RECOVERING: {S.RUNNING, S.QUEUED, S.FAILED, S.STOPPING},
    S.STOPPING: {S.QUEUED, S.PAUSED, S.CANCELLED, S.FAILED, S.SUCCEEDED},
    S.PAUSED: {S.WAITING, S.QUEUED, S.CANCELLED, S.FAILED},
}
# A gang that ends well before its last node said that it began never counts as running.
ALLOWED[S.STARTING] = ALLOWED[S.STARTING] | {S.SUCCEEDED}
# The last node of an attempt to go takes the job through STOPPING within one event.
GOING = (e.LaunchFailed, e.NodeLost, e.NodeReleased)
REFUSED_ANYWHERE = (e.Submitted, e.Resumed, e.StopRequested)
START = 1_000_000_000

shapes = st.builds(
    GangShape,
    nodes=st.integers(1, 3),
    slots_per_node=st.integers(1, 2),
    ranks_per_node=st.integers(1, 2),
)
budgets = st.builds(
    Budget,
    count=st.none() | st.integers(0, 3),
    per_s=st.none() | st.floats(1, 1000),
    first_wait_s=st.sampled_from([0.0, 1.0, 5.0]),
)
policies = st.builds(
    RecoveryPolicy,
    budgets=st.dictionaries(st.sampled_from(list(Cause)), budgets).map(lambda d: tuple(d.items())),
    retry_codes=st.just((33,)),
    fail_codes=st.just((2,)),
    max_no_progress=st.integers(1, 4),
)
roles = st.builds(
    RoleShape,
    nodes=st.integers(1, 2),
    slots_per_node=st.integers(0, 2),
    ranks_per_node=st.integers(1, 2),
    name=st.sampled_from(["actor", "server"]),
    required=st.booleans(),
)
terms = st.builds(
    JobPolicy,
    shape=shapes,
    roles=st.lists(roles, max_size=2, unique_by=lambda role: role.name).map(tuple),
    recovery=policies,
    grace_s=st.floats(0, 60),
    max_duration_s=st.none() | st.floats(1, 5000),
)


dependencies = st.builds(Dependency, st.integers(1, 3), st.sampled_from(list(DependencyKind)))


def placement(terms: JobPolicy) -> Placement:
    widths = [part.slots_per_node for part in terms.parts() for _ in part.nodes]
    shares = (NodeShare(f"n{i}", f"h{i}", tuple(range(n))) for i, n in enumerate(widths))
    return Placement("local", tuple(shares))


def fresh_share(live: Attempt, rank: int) -> NodeShare | None:
    """What a replacement of a lost supervisor would use; the rank may be one that the attempt lacks."""
    if rank >= len(live.nodes):
        return None
    share = live.placement.shares[rank]
    return replace(share, node=f"{share.node}+")


def failures(node_rank: int, now: int) -> st.SearchStrategy[Failure]:
    return st.builds(
        Failure,
        cause=st.sampled_from(list(Cause)),
        rank=st.none() | st.integers(0, 5),
        node_rank=st.just(node_rank),
        at=st.integers(now - 5_000_000, now),
        message=st.sampled_from(["a", "b"]),
        collateral=st.booleans(),
        exit_code=st.sampled_from([None, 1, 2, 33]),
    )


@st.composite
def one_event(draw: st.DrawFn, job: Job, now: int) -> e.JobEvent:
    """Mostly what a live supervisor would say; now and then something stale or repeated."""
    live = job.attempt
    sane = draw(st.integers(0, 9)) > 0
    attempt = (
        job.attempts if sane else draw(st.integers(max(0, job.attempts - 1), job.attempts + 1))
    )
    current = 0 if live is None else live.generation
    generation = current if sane else max(0, current + draw(st.integers(-1, 1)))
    # The size of the gang may change under a live attempt, which keeps its nodes.
    width = sum(part.num_nodes for part in job.policy.parts()) if live is None else len(live.nodes)
    rank = draw(st.integers(0, width - 1))
    step = draw(st.none() | st.integers(0, 6))
    maybe_failure = st.none() | failures(rank, now)
    kinds = {
        "placed": lambda: e.AttemptPlaced(
            job.attempts + 1 if sane else attempt, placement(job.policy)
        ),
        "ready": lambda: e.NodeReady(attempt, rank, 4000 + rank),
        "launch_failed": lambda: e.LaunchFailed(attempt, rank, "no"),
        "started": lambda: e.RanksStarted(attempt, generation, rank),
        "failed": lambda: e.RankFailed(attempt, generation, rank, draw(failures(rank, now))),
        "ended": lambda: e.RanksEnded(
            attempt,
            generation,
            rank,
            draw(st.sampled_from(list(NodeOutcome))),
            5000,
            step,
            draw(maybe_failure),
            target=draw(st.none() | st.integers(1, 3)),
        ),
        "released": lambda: e.NodeReleased(attempt, rank),
        "lost": lambda: e.NodeLost(attempt, rank, "gone", step),
        "died": lambda: e.NodeLost(
            attempt,
            rank,
            "died",
            step,
            replacement=None if live is None else fresh_share(live, rank),
        ),
        "saved": lambda: e.CheckpointCommitted(attempt, generation, step or 0, f"/c/{step}"),
        "bad": lambda: e.CheckpointQuarantined(attempt, generation, f"/c/{step}", "bad"),
        "stop": lambda: e.StopRequested(
            draw(st.sampled_from(list(StopGoal))), grace_s=draw(st.sampled_from([None, 0.0, 9.0]))
        ),
        "resumed": lambda: e.Resumed(),
        "waited": lambda: e.BackoffElapsed(),
        "long": lambda: e.DurationExceeded(),
        "overdue": lambda: e.StopOverdue(attempt),
        "stalled": lambda: e.RanksStalled(attempt, generation, rank, draw(failures(rank, now))),
        "asked": lambda: e.StacksRequested(),
        "entered": lambda: e.TunnelRequested("exec", 0, rank),
        "profiled": lambda: e.ProfileRequested(draw(st.integers(1, 9)), 2, ("nvtx",)),
        "save": lambda: e.SaveRequested(),
        "captured": lambda: e.StacksCaptured(attempt, generation, rank, draw(st.integers(0, 3))),
        "raised": lambda: e.TargetRaised(draw(st.integers(1, 4))),
        "changed": lambda: e.SettingsChanged(
            {"max_duration": None},
            {"max_duration": 60.0},
            draw(st.sampled_from([None, 60.0])),
            *draw(st.sampled_from([(None, None), (2, None), (3, 1), (1, None)])),
        ),
        "other_started": lambda: e.DependencyStarted(draw(st.integers(1, 3))),
        "other_ended": lambda: e.DependencyEnded(
            draw(st.integers(1, 3)), draw(st.sampled_from(sorted(TERMINAL)))
        ),
        "turn": lambda: e.TurnCame(),
        "unanswered": lambda: e.StacksOverdue(attempt, generation),
    }
    usual = ["placed", "ready", "started", "started", "ended", "ended", "failed", "waited"]
    usual += ["died", "ready"] if live and live.ranks_may_start else []
    leaving = ["released", "released", "lost"]
    pool = usual + (leaving if job.state is S.STOPPING or (live and live.finished) else [])
    if job.state is S.WAITING:
        pool = ["other_started", "other_ended", "turn"]
    name = draw(st.sampled_from(pool if draw(st.integers(0, 3)) else list(kinds)))
    return kinds[name]()


@dataclass
class Life:
    """A job with the log of what changed it."""

    job: Job
    log: list[tuple[e.JobEvent, int]]
    spent: dict[Cause, list[int]] = field(default_factory=dict)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    submitted = e.Submitted(
        7, draw(terms), tuple(draw(st.lists(dependencies, max_size=2))), draw(st.booleans())
    )
    now = START
    life = Life(create(submitted, now), [(submitted, now)])
    for _ in range(draw(st.integers(0, 40))):
        now += draw(st.sampled_from([0, 1, 1_000_000, 30_000_000]))
        event = draw(one_event(life.job, now))
        apply(life, event, now)
    return life


def apply(life: Life, event: e.JobEvent, now: int) -> None:
    before = life.job
    try:
        decision = decide(before, event, now)
    except InvalidTransition:
        assert isinstance(event, REFUSED_ANYWHERE)
        return
    after = decision.job
    if decision.ignored is not None:
        assert after == before and not decision.commands
        return
    life.job = after
    life.log.append((event, now))
    check_step(before, after, event, decision.commands)
    check_state(after)
    check_budgets(before, after, life, now)


def check_step(before: Job, after: Job, event: e.JobEvent, commands: tuple[object, ...]) -> None:
    if before.state in TERMINAL:
        # The name and labels of a job that is over may still change: settings, and nothing else of it.
        assert isinstance(event, e.SettingsChanged), f"{event} changed a job that is over"
        assert replace(after, policy=before.policy) == before
    if after.state is not before.state:
        allowed = ALLOWED[before.state]
        if isinstance(event, GOING) and S.STOPPING in allowed:
            allowed = allowed | ALLOWED[S.STOPPING]
        assert after.state in allowed, (before.state, event, after.state)
    launches = [one for one in commands if isinstance(one, LaunchAttempt)]
    replaced = check_replacements(before, after)
    placed = after.attempts > before.attempts
    assert launches == ([LaunchAttempt(after.attempts)] if placed or replaced else [])
    if before.attempt is not None and after.attempt is not None:
        assert replaced or after.attempt.placement == before.attempt.placement
        assert after.attempt.generation - before.attempt.generation in (0, 1)


def check_replacements(before: Job, after: Job) -> bool:
    """Whether a supervisor was replaced: one node alone changes, and the other supervisors stay."""
    one, two = before.attempt, after.attempt
    if one is None or two is None or one.num != two.num:
        return False
    numbers = [(a.incarnation, b.incarnation) for a, b in zip(one.nodes, two.nodes, strict=True)]
    changed = [rank for rank, (a, b) in enumerate(numbers) if a != b]
    if not changed:
        return False
    (rank,) = changed
    assert numbers[rank][1] == numbers[rank][0] + 1 and two.to_launch.count(rank) == 1
    assert before.restarts == after.restarts and two.failures and after.state is not S.STOPPING
    assert desired(after, two.num, rank).action is Action.WAIT
    for other, node in enumerate(two.nodes):
        if other != rank:
            assert node == one.nodes[other]
            assert two.placement.shares[other] == one.placement.shares[other]
            assert desired(after, two.num, other).action is not Action.RELEASE
    return True


def check_state(job: Job) -> None:
    # Slots are all held or none, exactly in the holding states.
    assert (job.attempt is not None) == (job.state in HOLDING) == job.holds_slots
    assert job.state not in (S.WAITING, S.QUEUED) or (bool(job.waits_for) or job.waits_turn) == (
        job.state is S.WAITING
    )
    assert (job.goal is not None) == (job.state is S.STOPPING)
    assert (job.ended_at is not None) == (job.state in TERMINAL)
    if job.attempt is not None:
        assert not job.attempt.all_in(NodePhase.RELEASED)
        for rank in range(len(job.attempt.nodes)):
            orders = desired(job, job.attempt.num, rank)
            if orders.action is Action.RUN:
                assert orders.master_port and orders.generation == job.attempt.generation
                assert job.attempt.nodes[rank].phase in (NodePhase.READY, NodePhase.UP)
                own = part_at(job.policy.parts(len(job.attempt.nodes)), rank)
                assert orders.master_address == f"h{own.first_node}"
        assert desired(job, job.attempt.num - 1, 0).action is Action.RELEASE
    at = wake_at(job)
    assert (at is not None and at <= START * 2) == bool(due(job, START * 2))


def check_budgets(before: Job, after: Job, life: Life, now: int) -> None:
    """Restarts of a cause without progress never exceed its budget, within any of its windows."""
    if after.progress.high_water_step != before.progress.high_water_step:
        life.spent = {}
    assert after.restarts - before.restarts in (0, 1)
    if after.restarts == before.restarts:
        return
    cause, at = after.spending.restarts[-1]
    assert at == now
    spent = life.spent.setdefault(cause, [])
    spent.append(now)
    budget = after.policy.recovery.budget(cause)
    if budget.count is not None:
        window = START * 10 if budget.per_s is None else round(budget.per_s * 1e6)
        assert sum(1 for one in spent if one > now - window) <= budget.count


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives())
def test_any_order_of_events_keeps_every_promise(life: Life) -> None:
    assert rebuild(life.log) == life.job
    assert decode(Job, encode(life.job)) == life.job
    stored = [(encode(event), type(event), at) for event, at in life.log]
    assert [(decode(kind, data), at) for data, kind, at in stored] == life.log


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives(), st.data())
def test_repeating_what_was_said_changes_nothing(life: Life, data: st.DataObject) -> None:
    """At-least-once delivery: every report of the log, told again at the end, is ignored."""
    said = (e.NodeReady, e.RanksStarted, e.RankFailed, e.RanksEnded, e.NodeReleased, e.NodeLost)
    for event, at in life.log:
        stale = life.job.attempt is None or not isinstance(event, said)
        if stale or event.attempt != life.job.attempt.num:
            continue
        if getattr(event, "generation", life.job.attempt.generation) < life.job.attempt.generation:
            assert decide(life.job, event, at).ignored is not None


def test_every_pair_of_state_and_event_is_in_the_table() -> None:
    assert set(TRANSITIONS) == {(state, kind) for state in JobState for kind in e.EVENT_TYPES}


def test_a_crash_loop_ends() -> None:
    """Kills without end, each before the first step: the job gives up instead of restarting for ever."""
    policy = RecoveryPolicy(budgets=((Cause.RANK_CRASH, Budget(count=None, first_wait_s=0.0)),))
    job = create(e.Submitted(1, JobPolicy(GangShape(1, 1, 1), policy)), START)
    job = decide(job, e.AttemptPlaced(1, placement(job.policy)), START).job
    job = decide(job, e.NodeReady(1, 0, 4000), START).job
    for generation in range(100):
        if job.state is S.STOPPING:
            break
        now = START + generation
        failure = Failure(Cause.RANK_CRASH, 0, 0, now, "killed")
        job = decide(job, e.RanksStarted(1, generation, 0), now).job
        job = decide(job, e.RankFailed(1, generation, 0, failure), now).job
        job = decide(job, e.RanksEnded(1, generation, 0, NodeOutcome.FAILED, 1), now).job
        if job.not_before is not None:
            job = decide(job, e.BackoffElapsed(), job.not_before).job
    assert job.goal is StopGoal.FAIL
    assert job.reason.code == "crash_loop"
    assert job.restarts == policy.max_no_progress
