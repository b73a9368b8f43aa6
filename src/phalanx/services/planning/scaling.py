"""One autoscaling step: ask the planner which gangs more nodes would start, decide, and tell the clusters.

The state is stored after a cluster has taken what is requested. A step that ends in between is repeated by
the next one: what an executor is told is all that is requested, not a change of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from phalanx.core.cost.price_table import Held, PriceTable
from phalanx.core.cost.prices import offer_of
from phalanx.core.gang.placement import Node
from phalanx.core.scaling.demand import NodeDemand, demand_for
from phalanx.core.scaling.model import (
    FLOOR,
    DecisionKind,
    GrowthFailure,
    NodeFacts,
    NodeWish,
    PoolFacts,
    PoolFindings,
    PoolScaling,
    ScalingPolicy,
    ScalingStep,
)
from phalanx.core.scaling.step import StepQuestion, begin, finish, refuse
from phalanx.core.scheduling import RunningJob
from phalanx.errors import ExecutorUnavailable, NotFound
from phalanx.executors.protocol import ScalableExecutor
from phalanx.kit.text import job_label
from phalanx.schemas.api.pools import DrainRequest
from phalanx.services.caches.row_cache import SchedulerView
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.planning.scheduling import view_of
from phalanx.services.platform import Platform
from phalanx.services.resources import pools
from phalanx.services.resources.bounds import scaling_policies
from phalanx.store import jobs, planning
from phalanx.store.cost import prices
from phalanx.store.database import Tx

_LOG = logging.getLogger(__name__)
ACTOR = "scaling"
# Without a decision the state is written this often: it counts the cost of the day.
_WRITE_US = 60_000_000


@dataclass(slots=True)
class _Pool:
    """One pool in a step."""

    name: str
    policy: ScalingPolicy
    before: PoolScaling  # as it was stored
    facts: PoolFacts
    held: tuple[NodeWish, ...]
    question: StepQuestion
    told: Mapping[int, str] = field(default_factory=dict)


def scaling_step(platform: Platform, now: int) -> None:
    """Decide for each pool that can grow. A cluster that does not answer is left out until it does."""
    executor = platform.executor
    if not isinstance(executor, ScalableExecutor):
        return
    policies = scaling_policies(platform)
    if not policies:
        return
    view = view_of(platform, now)
    states, table = platform.store.view(lambda tx: (planning.scaling_states(tx), prices.table(tx)))
    found = [
        _pool(name, policy, states.get(name, PoolScaling()), view, table, now)
        for name, policy in policies.items()
    ]
    reached = [one for one in found if _ask_cluster(executor, one, now)]
    demands = _demand(view, reached, now)
    steps = {one.name: _decide(platform, executor, one, demands, now) for one in reached}
    kept = {name: state for name, state in states.items() if name in policies}
    _store(platform, states, kept, {n: step for n, step in steps.items() if step is not None}, now)


def _pool(
    name: str,
    policy: ScalingPolicy,
    state: PoolScaling,
    view: SchedulerView,
    table: PriceTable,
    now: int,
) -> _Pool:
    there = [node for node in view.nodes if node.pool == name]
    on: dict[str, list[RunningJob]] = {}
    for one in view.snapshot.held:
        for share in one.placement.shares:
            on.setdefault(share.node, []).append(one)
    new = next((node for node in there if node.future), None)
    present = [node for node in there if not node.future]
    like = new or next(iter(present), None)
    facts = PoolFacts(
        nodes=tuple(_node(node, on.get(node.id, []), table, now) for node in present),
        new_slots=like.num_slots if like is not None else 1,
        new_nano=_price(like, table, now) if like is not None else 0,
        waiting=frozenset(job.num for job in view.snapshot.waiting),
        held=frozenset(one.job for one in view.snapshot.held),
    )
    held = tuple(
        NodeWish(len(share.slots), one.cpus_per_node, one.memory_per_node_bytes)
        for one in view.snapshot.held
        if one.placement.pool == name
        for share in one.placement.shares
    )
    return _Pool(name, policy, state, facts, held, begin(policy, state, facts, now))


def _node(node: Node, jobs_there: list[RunningJob], table: PriceTable, now: int) -> NodeFacts:
    return NodeFacts(
        id=node.id,
        num_slots=node.num_slots,
        nano_per_hour=_price(node, table, now),
        usable=not node.closed,
        jobs=tuple(sorted({one.job for one in jobs_there})),
        may_drain=all(one.preemptible and one.save_s is not None for one in jobs_there),
        drain_cost=sum(one.eviction_cost(now) for one in jobs_there if not one.stopping),
    )


def _price(node: Node, table: PriceTable, now: int) -> int:
    held = Held(node.pool, (offer_of(node, node.num_slots),), node.num_cpus)
    return table.nano_per_hour(held, now)


def _ask_cluster(executor: ScalableExecutor, pool: _Pool, now: int) -> bool:
    """Read what the autoscaler says about overdue gangs; whether the cluster answers."""
    due = now - pool.policy.grow_within_us
    claimed = [one.gang.job for one in pool.before.claims if one.asked_at <= due]
    if not claimed:
        return True
    try:
        pool.told = executor.growth(pool.name, claimed)
    except ExecutorUnavailable as error:
        _LOG.warning("pool %s is not scaled: %s", pool.name, error)
        return False
    return True


def _demand(view: SchedulerView, found: list[_Pool], now: int) -> tuple[NodeDemand, NodeDemand]:
    """What the pools may ask for, and what they would ask for without budgets and pauses."""
    joining = frozenset(name for one in found for name in one.question.joining)
    left_out = frozenset(job for one in found for job in one.question.leave_out)
    offers = {one.name: one.question.offer for one in found}
    most = {one.name: one.question.most for one in found}

    def ask(numbers: Mapping[str, int]) -> NodeDemand:
        return demand_for(view.snapshot, numbers, now, joining=joining, leave_out=left_out)

    wants = ask(offers)
    return wants, wants if offers == most else ask(most)


def _decide(
    platform: Platform,
    executor: ScalableExecutor,
    one: _Pool,
    demands: tuple[NodeDemand, NodeDemand],
    now: int,
) -> ScalingStep | None:
    """Decide for a pool and tell its cluster; None: it does not answer, and nothing is decided."""
    wants, unbounded = demands
    step = finish(
        one.policy,
        one.question,
        one.facts,
        PoolFindings(wants.of(one.name), unbounded.of(one.name), wants.fit_now, one.told, one.held),
        now,
    )
    try:
        platform.may_act()
        refusals = executor.request(one.name, step.demand)
    except ExecutorUnavailable as error:
        _LOG.warning("pool %s is not scaled: %s", one.name, error)
        return None
    if refusals:
        state, decisions, failed = refuse(one.policy, step.state, refusals, now)
        step = replace(
            step,
            state=state,
            decisions=(*step.decisions, *decisions),
            failed=(*step.failed, *failed),
        )
    again = tuple(n.id for n in one.facts.nodes if n.usable and n.id in one.before.leaving)
    undrain = step.undrain
    return replace(step, drain=(*step.drain, *(name for name in again if name not in undrain)))


def _store(
    platform: Platform,
    before: Mapping[str, PoolScaling],
    kept: dict[str, PoolScaling],
    steps: Mapping[str, ScalingStep],
    now: int,
) -> None:
    after = {**kept, **{name: step.state for name, step in steps.items()}}
    if _differ(before, after):

        def work(tx: Tx) -> None:
            planning.put_scaling_states(tx, after)
            for name, step in steps.items():
                for one in step.failed:
                    _tell_job(tx, name, one, now)

        platform.store.transact(work)
    for name, step in steps.items():
        for decision in step.decisions:
            level = logging.WARNING if decision.kind is DecisionKind.FAILED else logging.INFO
            _LOG.log(level, "pool %s: %s: %s", name, decision.kind, decision.text)
        for node in step.drain:
            reason = next((d.text for d in step.decisions if node in d.nodes), "too many nodes")
            pools.drain(platform, node, DrainRequest(reason=reason, jobs="move"), now, ACTOR)
        for node in step.undrain:
            pools.undrain(platform, node)


def _differ(before: Mapping[str, PoolScaling], after: Mapping[str, PoolScaling]) -> bool:
    """Whether anything but the time has changed, or the cost has not been written for long."""
    if before.keys() != after.keys():
        return True
    for name, one in after.items():
        known = before[name]
        since = known.counted_at or 0
        if (one.counted_at or 0) - since >= _WRITE_US:
            return True
        if replace(one, counted_at=None, spent_nano=0) != replace(
            known, counted_at=None, spent_nano=0
        ):
            return True
    return False


def _tell_job(tx: Tx, pool: str, one: GrowthFailure, now: int) -> None:
    """Note in the log of a job that the nodes it waits for did not come."""
    if one.job == FLOOR:
        return
    try:
        stored = jobs.load(tx, one.job)
    except NotFound:
        return
    said = f": {one.text}" if one.text else ""
    message = f"pool {pool} got no {one.num_nodes} nodes for {job_label(one.job)}{said}"
    note = Note("warned", stored.job.attempts, 0, {"message": message})
    commit_events(tx, one.job, [note], now, ACTOR)
