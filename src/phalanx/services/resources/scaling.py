"""The scaling of pools: its bounds and how they are set, its view, and what a waiting job is told."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from phalanx.core.cost.prices import NANO
from phalanx.core.scaling.model import FLOOR, PoolScaling, ScalingBounds, ScalingPolicy
from phalanx.errors import ExecutorUnavailable, NotFound, Problem, SpecInvalid
from phalanx.executors.protocol import ScalableExecutor
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.pools import (
    FailedRequestView,
    NodeRequestView,
    PoolScalingView,
    ScalePoolRequest,
    ScalingDecisionView,
)
from phalanx.services.lifecycle.commit import QUEUE
from phalanx.services.platform import Platform
from phalanx.services.resources.bounds import BoundedPolicy, bounded_policies, file_policies
from phalanx.services.resources.inventory import suggestion
from phalanx.store import planning
from phalanx.store.database import Tx

SCALING = "scaling"
"""The topic that is published when bounds were set: the next step follows at once."""


def scaling_states(platform: Platform) -> dict[str, tuple[ScalingPolicy, PoolScaling]]:
    """The policy in effect and the state of each pool that can grow."""
    return {name: (one.policy, state) for name, (one, state) in _states(platform).items()}


def _states(platform: Platform) -> dict[str, tuple[BoundedPolicy, PoolScaling]]:
    policies = bounded_policies(platform)
    states = platform.store.view(planning.scaling_states) if policies else {}
    return {name: (one, states.get(name, PoolScaling())) for name, one in policies.items()}


def scale_pool(
    platform: Platform, pool: str, request: ScalePoolRequest, now: int, actor: str
) -> PoolScalingView:
    """Set bounds of a pool, which precede those of its pool file. What is not given stays as it is.

    Raises NotFound where the pool does not scale, and SpecInvalid where its bounds contradict each other.
    """
    file = _file_policy(platform, pool)
    if request == ScalePoolRequest():
        raise SpecInvalid([Problem("", "give min_nodes, max_nodes or autoscaling")])

    def work(tx: Tx) -> None:
        known = planning.scaling_bounds(tx).get(pool)
        before = known or ScalingBounds(now, actor)
        after = replace(
            before,
            min_nodes=before.min_nodes if request.min_nodes is None else request.min_nodes,
            max_nodes=before.max_nodes if request.max_nodes is None else request.max_nodes,
            is_off=before.is_off if request.autoscaling is None else request.autoscaling == "off",
        )
        _refuse_contradiction(file, after)
        if after != before:
            after = replace(after, set_at=now, set_by=actor)
        _put(tx, pool, after if after.says_something else None)

    platform.store.transact(work)
    return show_scaling(platform, pool)


def reset_scaling(platform: Platform, pool: str) -> None:
    """Return to the bounds of the pool file; may be repeated. Raises NotFound."""
    _file_policy(platform, pool)
    platform.store.transact(lambda tx: _put(tx, pool, None))


def _put(tx: Tx, pool: str, bounds: ScalingBounds | None) -> None:
    planning.put_scaling_bounds(tx, pool, bounds)
    tx.touched.topics |= {SCALING, QUEUE}


def _file_policy(platform: Platform, pool: str) -> ScalingPolicy:
    found = file_policies(platform)
    if pool not in found:
        raise NotFound(f"pool {pool} has no `scaling`", suggestion(pool, found))
    return found[pool]


def _refuse_contradiction(file: ScalingPolicy, bounds: ScalingBounds) -> None:
    least = file.min_nodes if bounds.min_nodes is None else bounds.min_nodes
    most = file.max_nodes if bounds.max_nodes is None else bounds.max_nodes
    if least <= most:
        return
    source = {True: "that of the pool file", False: "set before or now"}
    said = (
        f"the pool would keep {least} nodes ({source[bounds.min_nodes is None]}) and have at most "
        f"{most} ({source[bounds.max_nodes is None]}); set both bounds together"
    )
    raise SpecInvalid([Problem("min_nodes", said)])


def show_scaling(platform: Platform, pool: str) -> PoolScalingView:
    """The scaling of one pool. Raises NotFound where it does not scale."""
    found = _states(platform)
    if pool not in found:
        raise NotFound(f"pool {pool} has no `scaling`", suggestion(pool, found))
    bounded, state = found[pool]
    policy = bounded.policy
    return PoolScalingView(
        pool=pool,
        min_nodes=policy.min_nodes,
        max_nodes=policy.max_nodes,
        max_slots=policy.max_slots,
        bounds=bounded.view(),
        num_nodes=len(state.nodes),
        num_requested=sum(one.gang.num_new for one in state.claims),
        per_hour=_usd(policy.hourly_nano),
        per_day=_usd(policy.daily_nano),
        spent_today=_usd(state.spent_nano) or Decimal(0),
        requests=[
            NodeRequestView(
                job=_job(one.gang.job),
                num_nodes=len(one.gang.nodes),
                num_new=one.gang.num_new,
                asked_at=at_of(one.asked_at),
            )
            for one in state.claims
        ],
        failed=[
            FailedRequestView(
                job=_job(one.job),
                num_nodes=one.num_nodes,
                asked_at=at_of(one.asked_at),
                failed_at=at_of(one.failed_at),
                until=at_of(one.until),
                text=one.text,
            )
            for one in state.failed
        ],
        released=list(state.released),
        draining=list(state.leaving),
        limits=[f"{'' if one.job is None else f'j-{one.job} '}{one.text}" for one in state.limits],
        decisions=[
            ScalingDecisionView(
                at=at_of(one.at),
                kind=one.kind.value,
                text=one.text,
                num_nodes=one.num_nodes,
                jobs=list(one.jobs),
                nodes=list(one.nodes),
            )
            for one in reversed(state.decisions)
        ],
    )


def growth_in_words(platform: Platform, job: int) -> str:
    """What became of the request for the nodes of a waiting job; empty: there was none."""
    said = []
    for pool, (_, state) in scaling_states(platform).items():
        for claim in state.claims:
            if claim.gang.job == job:
                text = f"waits for nodes of pool {pool}: asked for {claim.gang.num_new} at "
                said.append(f"{text}{_time(claim.asked_at)}{_told(platform, pool, job)}")
        for one in state.failed:
            if one.job == job:
                why = f"; the cluster's autoscaler says: {one.text}" if one.text else ""
                text = (
                    f"pool {pool} got no {one.num_nodes} nodes, asked for at {_time(one.asked_at)}"
                )
                said.append(f"{text}{why}; asks again after {_time(one.until)}")
        said += [f"pool {pool} does not grow: it {o.text}" for o in state.limits if o.job == job]
    return "; ".join(said)


def _told(platform: Platform, pool: str, job: int) -> str:
    executor = platform.executor
    if not isinstance(executor, ScalableExecutor):
        return ""
    try:
        text = executor.growth(pool, [job]).get(job, "")
    except ExecutorUnavailable:
        return "; the cluster does not answer"
    return f"; the cluster's autoscaler says: {text}" if text else ""


def _time(at: int) -> str:
    return f"{at_of(at):%Y-%m-%dT%H:%M:%SZ}"


def _job(job: int) -> int | None:
    return None if job == FLOOR else job


def _usd(nano: int | None) -> Decimal | None:
    return None if nano is None else Decimal(nano) / NANO
