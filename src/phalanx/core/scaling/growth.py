"""Growth: claims for whole gangs, within the room of the pool, and the end of claims.

A claim ends when its gang has its nodes, does not want them any more, or did not get them in time. New
claims are made at most once in each cool-down. A gang that got none is not asked for again for a while;
others are, also smaller ones that the cluster may have nodes for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from phalanx.core.scaling.limits import Room
from phalanx.core.scaling.model import (
    FLOOR,
    Claim,
    DecisionKind,
    GrowthFailure,
    NodeWish,
    PoolFacts,
    PoolFindings,
    PoolScaling,
    PoolWants,
    ScalingPolicy,
    StandingLimit,
    StepNotes,
    WantedGang,
)

MAX_BACK_OFF_US = 3600 * 1_000_000
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Growth:
    """The state after claims were ended and made, and the claims that failed."""

    state: PoolScaling
    failed: tuple[GrowthFailure, ...]


def grow(
    policy: ScalingPolicy,
    state: PoolScaling,
    facts: PoolFacts,
    found: PoolFindings,
    room: Room,
    notes: StepNotes,
) -> Growth:
    """End claims, then make new ones."""
    now, wants = notes.now, found.wants
    known = tuple(one for one in state.failed if _is_known(one, policy, facts))
    state = replace(state, failed=known)
    floor = _floor(policy, state, facts, wants, room, now)
    wanted = {one.job: one for one in (*wants.gangs, *floor)}
    if policy.is_off:
        wanted = {}
    kept = _ended(policy, state, facts, wanted, found.fit_now, notes)
    kept, failed = _failed(policy, state, kept, found.told, notes)
    state = replace(_with_failures(state, failed), claims=tuple(kept))
    if may_ask(policy, state, now):
        state = _ask(state, wanted, kept, notes)
    return Growth(state, tuple(failed))


def may_ask(policy: ScalingPolicy, state: PoolScaling, now: int) -> bool:
    """Whether new claims may be made now."""
    return state.grown_at is None or now >= state.grown_at + policy.cool_down_up_us


def _is_known(one: GrowthFailure, policy: ScalingPolicy, facts: PoolFacts) -> bool:
    """Whether a failure still matters: its gang waits, or the pool is below its minimum."""
    if one.job == FLOOR:
        return len(facts.nodes) < policy.min_nodes
    return one.job in facts.waiting


def _floor(
    policy: ScalingPolicy,
    state: PoolScaling,
    facts: PoolFacts,
    wants: PoolWants,
    room: Room,
    now: int,
) -> list[WantedGang]:
    """The nodes up to the least number of the pool, beside those that gangs will bring."""
    if policy.is_off or any(one.job == FLOOR and now < one.until for one in state.failed):
        return []
    lacking = policy.min_nodes - len(facts.nodes)
    open_one = next((one.gang for one in state.claims if one.gang.job == FLOOR), None)
    if open_one is not None and lacking > 0:
        return [open_one]
    number = min(lacking, room.num_nodes) - wants.num_new
    if number <= 0:
        return []
    return [WantedGang(FLOOR, (NodeWish(facts.new_slots),) * number, number)]


def _ended(
    policy: ScalingPolicy,
    state: PoolScaling,
    facts: PoolFacts,
    wanted: Mapping[int, WantedGang],
    fit_now: frozenset[int],
    notes: StepNotes,
) -> list[Claim]:
    """The claims that go on."""
    going, met, gone = [], [], []
    for one in state.claims:
        job, gang = one.gang.job, wanted.get(one.gang.job)
        if gang is not None and gang.nodes == one.gang.nodes:
            going.append(one)
        elif (
            job in facts.held
            or job in fit_now
            or (job == FLOOR and gang is None and not policy.is_off)
        ):
            met.append(one)
        else:
            gone.append(one)
    if met:
        text = f"the nodes of {_names(met)} are there"
        notes.note(DecisionKind.MET, text, _total(met), tuple(one.gang.job for one in met))
    if gone:
        text = f"{_names(gone)} need no new nodes any more"
        if policy.is_off:
            text = f"nothing is requested for {_names(gone)}: autoscaling of the pool is off"
        notes.note(DecisionKind.WITHDRAWN, text, _total(gone), tuple(one.gang.job for one in gone))
    return going


def _failed(
    policy: ScalingPolicy,
    state: PoolScaling,
    claims: list[Claim],
    told: Mapping[int, str],
    notes: StepNotes,
) -> tuple[list[Claim], list[GrowthFailure]]:
    """The claims that go on, and those that did not get their nodes in time."""
    going, failed = [], []
    for one in claims:
        if notes.now < one.asked_at + policy.grow_within_us:
            going.append(one)
            continue
        job, said = one.gang.job, told.get(one.gang.job, "")
        failed.append(_failure(policy, state, one, said, notes.now))
        within = f"{policy.grow_within_us / 1e6:.0f} s"
        text = f"{one.gang.num_new} nodes for {_names([one])} did not all come in {within}"
        said = f": {said}" if said else ""
        notes.note(DecisionKind.FAILED, f"{text}{said}", one.gang.num_new, (job,))
    return going, failed


def refused(
    policy: ScalingPolicy, state: PoolScaling, refusals: Mapping[int, str], notes: StepNotes
) -> Growth:
    """The state after the cluster has refused the requests of some gangs: they failed at once."""
    going, failed = [], []
    for one in state.claims:
        said = refusals.get(one.gang.job)
        if said is None:
            going.append(one)
            continue
        failed.append(_failure(policy, state, one, said, notes.now))
        text = f"the request for {_names([one])}: {said}"
        notes.note(DecisionKind.FAILED, text, one.gang.num_new, (one.gang.job,))
    state = replace(_with_failures(state, failed), claims=tuple(going))
    return Growth(state, tuple(failed))


def _failure(
    policy: ScalingPolicy, state: PoolScaling, one: Claim, said: str, now: int
) -> GrowthFailure:
    """A failure with its back-off: each one in a row waits twice as long as the one before."""
    before = next((known.in_a_row for known in state.failed if known.job == one.gang.job), 0)
    wait_us = min(MAX_BACK_OFF_US, policy.grow_within_us << min(before, 16))
    return GrowthFailure(
        one.gang.job, one.gang.num_new, one.asked_at, now, now + wait_us, said, before + 1
    )


def _with_failures(state: PoolScaling, failed: list[GrowthFailure]) -> PoolScaling:
    jobs = {one.job for one in failed}
    earlier = [one for one in state.failed if one.job not in jobs]
    return replace(state, failed=(*earlier, *failed))


def _ask(
    state: PoolScaling, wanted: Mapping[int, WantedGang], kept: list[Claim], notes: StepNotes
) -> PoolScaling:
    out = {one.gang.job for one in kept}
    out |= {one.job for one in state.failed if notes.now < one.until}
    fresh = [Claim(gang, notes.now) for job, gang in wanted.items() if job not in out]
    if not fresh:
        return state
    jobs = tuple(one.gang.job for one in fresh)
    text = f"asked for the nodes of {_names(fresh)}"
    notes.note(DecisionKind.ASKED, text, _total(fresh), jobs)
    return replace(state, claims=(*kept, *fresh), grown_at=notes.now)


def standing_limits(found: PoolFindings, room: Room) -> list[StandingLimit]:
    """A limit for each gang that would get nodes if only the number of nodes limited the pool."""
    got = {one.job for one in found.wants.gangs}
    return [
        StandingLimit(DecisionKind.LIMITED, f"needs {one.num_new} new nodes; {room.text}", one.job)
        for one in found.unbounded.gangs
        if one.job not in got
    ]


def _total(claims: list[Claim]) -> int:
    return sum(one.gang.num_new for one in claims)


def _names(claims: list[Claim]) -> str:
    jobs = [one.gang.job for one in claims]
    names = [f"j-{job}" if job != FLOOR else "the pool's minimum" for job in jobs[:_NAMED]]
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return f"{', '.join(names)}{more}"
