"""Scale-down: which nodes are left to the cluster's autoscaler, and which jobs save and leave for it.

Nodes without jobs go first. A node with jobs goes only where the pool is above a limit, and only if all of
its jobs can save and leave; never so many that fewer than the least number of nodes remain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.core.scaling.limits import ceiling, is_day_spent
from phalanx.core.scaling.model import (
    DecisionKind,
    NodeFacts,
    PoolFacts,
    PoolScaling,
    ScalingPolicy,
    StandingLimit,
    StepNotes,
)

_NAMED = 4


@dataclass(frozen=True, slots=True)
class Release:
    """The state after nodes were released, the nodes to drain and to use again, and what prevents more."""

    state: PoolScaling
    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()
    limits: tuple[StandingLimit, ...] = ()


def release(
    policy: ScalingPolicy,
    state: PoolScaling,
    facts: PoolFacts,
    needed: frozenset[str],
    notes: StepNotes,
) -> Release:
    """Release nodes that no job needs, and drain nodes that are too many."""
    there = {one.id: one for one in facts.nodes}
    idle = {one.id for one in facts.nodes if one.usable and not one.jobs and one.id not in needed}
    leaving = tuple(name for name in state.leaving if name in there)
    released = tuple(name for name in state.released if name in idle)
    if policy.is_off:
        return _keep_all(state, leaving, notes)
    state = replace(state, leaving=leaving, released=released)
    most, limit = ceiling(policy, facts)
    excess = len(there) - len(leaving) - max(most, policy.min_nodes)
    if excess < 0 and leaving:
        back = leaving[:-excess]
        notes.note(
            DecisionKind.RETURNED, f"{_names(back)} may be used again", len(back), nodes=back
        )
        return Release(replace(state, leaving=leaving[len(back) :]), undrain=back)
    excess -= len(released)
    cooled = state.shrunk_at is None or notes.now >= state.shrunk_at + policy.cool_down_down_us
    if not cooled:
        return Release(state, limits=_kept(excess, facts, leaving, limit))
    if excess > 0:
        return _shrink(state, facts, idle, excess, limit, notes)
    return Release(_let_go(policy, state, facts, idle, notes))


def _keep_all(state: PoolScaling, leaving: tuple[str, ...], notes: StepNotes) -> Release:
    """Take back every release and drain that the autoscaler has not followed yet."""
    if leaving:
        text = f"{_names(leaving)} may be used again: autoscaling of the pool is off"
        notes.note(DecisionKind.RETURNED, text, len(leaving), nodes=leaving)
    return Release(replace(state, leaving=(), released=()), undrain=leaving)


def _shrink(
    state: PoolScaling,
    facts: PoolFacts,
    idle: set[str],
    excess: int,
    limit: str,
    notes: StepNotes,
) -> Release:
    """Give back as many nodes as are too many: those without jobs, then those that lose nothing."""
    free = [name for name in _longest_idle(state) if name in idle and name not in state.released]
    fresh = tuple(free[:excess])
    if fresh:
        text = f"{_names(fresh)} have no jobs, and {limit}"
        notes.note(DecisionKind.RELEASED, text, len(fresh), nodes=fresh)
    left = excess - len(fresh)
    busy = sorted(_drainable(facts, state.leaving), key=lambda one: (one.drain_cost, one.id))
    drained = tuple(one.id for one in busy[:left]) if left else ()
    if drained:
        jobs = tuple(sorted({job for one in busy[:left] for job in one.jobs}))
        text = f"jobs save and leave {_names(drained)}: {limit}"
        notes.note(DecisionKind.DRAINED, text, len(drained), jobs, drained)
    if fresh or drained:
        state = replace(
            state,
            released=(*state.released, *fresh),
            leaving=(*state.leaving, *drained),
            shrunk_at=notes.now,
        )
    return Release(state, drain=drained, limits=_kept(left - len(drained), facts, (), limit))


def _drainable(facts: PoolFacts, leaving: tuple[str, ...]) -> list[NodeFacts]:
    return [
        one
        for one in facts.nodes
        if one.usable and one.jobs and one.may_drain and one.id not in leaving
    ]


def _kept(
    excess: int, facts: PoolFacts, leaving: tuple[str, ...], limit: str
) -> tuple[StandingLimit, ...]:
    """What is told where more nodes should go than can."""
    if excess <= 0 or _drainable(facts, leaving):
        return ()
    text = f"{limit}; it keeps more, because their jobs would lose work"
    return (StandingLimit(DecisionKind.KEPT, text),)


def _let_go(
    policy: ScalingPolicy,
    state: PoolScaling,
    facts: PoolFacts,
    idle: set[str],
    notes: StepNotes,
) -> PoolScaling:
    """Release nodes that have had no jobs for long enough, down to the least number."""
    spent = is_day_spent(policy, state)
    since = {one.id: one.idle_since for one in state.nodes}
    due = [
        name
        for name in _longest_idle(state)
        if name in idle
        and name not in state.released
        and (spent or _has_been(since[name], notes.now, policy.idle_after_us))
    ]
    kept = len(facts.nodes) - len(state.leaving) - len(state.released)
    fresh = tuple(due[: max(0, kept - policy.min_nodes)])
    if not fresh:
        return state
    text = f"{_names(fresh)} had no jobs for {policy.idle_after_us / 1e6:.0f} s"
    if spent:
        text = f"{_names(fresh)} have no jobs, and the budget of the day is used up"
    notes.note(DecisionKind.RELEASED, text, len(fresh), nodes=fresh)
    return replace(state, released=(*state.released, *fresh), shrunk_at=notes.now)


def _has_been(since: int | None, now: int, duration_us: int) -> bool:
    return since is not None and now >= since + duration_us


def _longest_idle(state: PoolScaling) -> list[str]:
    idle = [(one.idle_since, one.id) for one in state.nodes if one.idle_since is not None]
    return [name for _, name in sorted(idle)]


def _names(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f"{', '.join(nodes[:_NAMED])}{more}"
