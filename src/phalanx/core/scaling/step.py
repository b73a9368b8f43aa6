"""One step of a pool's scaling: `begin` says what to look for, `finish` decides on what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from phalanx.core.scaling.growth import grow, may_ask, refused, standing_limits
from phalanx.core.scaling.limits import Room, account, room_of
from phalanx.core.scaling.model import (
    MAX_DECISIONS,
    DecisionKind,
    GrowthFailure,
    NodeFacts,
    PoolDemand,
    PoolFacts,
    PoolFindings,
    PoolScaling,
    ScalingDecision,
    ScalingPolicy,
    ScalingStep,
    SeenNode,
    StandingLimit,
    StepNotes,
)
from phalanx.core.scaling.release import release


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """What the planner is to be asked: what would start if the pool had `offer` more nodes.

    `most` is the number without budgets: gangs that would start with it and not with `offer` are told why.
    `leave_out` are jobs that failed to get nodes lately, `joining` present nodes on which nothing may start
    yet.
    """

    state: PoolScaling
    room: Room
    offer: int
    most: int
    leave_out: frozenset[int]
    joining: frozenset[str]


def begin(policy: ScalingPolicy, state: PoolScaling, facts: PoolFacts, now: int) -> StepQuestion:
    """Bring the state up to date with the nodes that are there."""
    # What is there at the first look does not join.
    first = state.counted_at is None
    state = account(state, facts, now)
    known = {one.id: one for one in state.nodes}
    seen = tuple(
        _seen(known.get(one.id) or SeenNode(one.id, now, ready=first), one, now)
        for one in facts.nodes
    )
    state = replace(state, nodes=seen)
    usable = {one.id for one in facts.nodes if one.usable}
    joining = frozenset(
        one.id
        for one in seen
        if not one.ready and one.id not in usable and now < one.since + policy.grow_within_us
    )
    room = room_of(policy, state, facts)
    failed = frozenset(one.job for one in state.failed if now < one.until)
    most = max(0, policy.max_nodes - len(facts.nodes))
    return StepQuestion(state, room, room.num_nodes, most, failed, joining)


def _seen(known: SeenNode, node: NodeFacts, now: int) -> SeenNode:
    idle = node.usable and not node.jobs
    idle_since = (known.idle_since if known.idle_since is not None else now) if idle else None
    return replace(known, ready=known.ready or node.usable, idle_since=idle_since)


def finish(
    policy: ScalingPolicy,
    asked: StepQuestion,
    facts: PoolFacts,
    found: PoolFindings,
    now: int,
) -> ScalingStep:
    """Decide: claims for gangs, nodes to keep, to release and to drain."""
    notes = StepNotes(now)
    known = _bounded(policy, asked.state, notes)
    grown = grow(policy, known, facts, found, asked.room, notes)
    shrunk = release(policy, grown.state, facts, found.wants.needed, notes)
    state = shrunk.state
    # In a pause nothing new is asked for: what limits is told after it.
    if may_ask(policy, asked.state, now):
        limits = (*standing_limits(found, asked.room), *shrunk.limits)
        state = _with_limits(state, limits, notes)
    state = _recorded(state, notes)
    keep = tuple(
        one.id
        for one in facts.nodes
        if one.usable and not one.jobs and one.id not in (*state.released, *state.leaving)
    )
    demand = PoolDemand(tuple(one.gang for one in state.claims), found.held, keep)
    return ScalingStep(
        state, demand, shrunk.drain, shrunk.undrain, tuple(notes.found), grown.failed
    )


def _bounded(policy: ScalingPolicy, state: PoolScaling, notes: StepNotes) -> PoolScaling:
    """The state with the present bounds; a change of them is told."""
    bounds = policy.bounds_in_words
    if state.bounds and state.bounds != bounds:
        notes.note(DecisionKind.RESIZED, f"bounds: {bounds}; before: {state.bounds}")
    return replace(state, bounds=bounds)


def refuse(
    policy: ScalingPolicy, state: PoolScaling, refusals: Mapping[int, str], now: int
) -> tuple[PoolScaling, tuple[ScalingDecision, ...], tuple[GrowthFailure, ...]]:
    """The state after the cluster has refused requests, with the decisions and the failures of that."""
    notes = StepNotes(now)
    grown = refused(policy, state, refusals, notes)
    return _recorded(grown.state, notes), tuple(notes.found), grown.failed


def _with_limits(
    state: PoolScaling, limits: tuple[StandingLimit, ...], notes: StepNotes
) -> PoolScaling:
    """The state with the limits that bind now; each is told once, whatever numbers change in it."""
    known = {(one.kind, one.job): one for one in state.limits}
    for one in limits:
        if (one.kind, one.job) not in known:
            jobs = () if one.job is None else (one.job,)
            name = f"j-{one.job} " if jobs else ""
            notes.note(DecisionKind(one.kind), f"{name}{one.text}", jobs=jobs)
    kept = tuple(known.get((one.kind, one.job), one) for one in limits)
    return replace(state, limits=kept)


def _recorded(state: PoolScaling, notes: StepNotes) -> PoolScaling:
    counts = Counter(dict(state.counts))
    counts.update(one.kind.value for one in notes.found)
    kept = (*state.decisions, *notes.found)[-MAX_DECISIONS:]
    return replace(state, decisions=kept, counts=tuple(sorted(counts.items())))
