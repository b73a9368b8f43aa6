"""The scaling of pools as the API shows it, and what a waiting job is told about requested nodes."""

from __future__ import annotations

from decimal import Decimal

from phalanx.core.cost.prices import NANO
from phalanx.core.scaling.model import FLOOR, PoolScaling, ScalingPolicy
from phalanx.errors import ExecutorUnavailable, NotFound
from phalanx.executors.protocol import ScalableExecutor
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.pools import (
    FailedRequestView,
    NodeRequestView,
    PoolScalingView,
    ScalingDecisionView,
)
from phalanx.services.platform import Platform
from phalanx.services.resources.inventory import suggestion
from phalanx.store import planning


def scaling_policies(platform: Platform) -> dict[str, ScalingPolicy]:
    """The policies of the pools that can grow."""
    executor = platform.executor
    return dict(executor.scaling_policies()) if isinstance(executor, ScalableExecutor) else {}


def scaling_states(platform: Platform) -> dict[str, tuple[ScalingPolicy, PoolScaling]]:
    """The policy and the state of each pool that can grow."""
    policies = scaling_policies(platform)
    states = platform.store.view(planning.scaling_states) if policies else {}
    return {name: (one, states.get(name, PoolScaling())) for name, one in policies.items()}


def show_scaling(platform: Platform, pool: str) -> PoolScalingView:
    """The scaling of one pool. Raises NotFound where it does not scale."""
    found = scaling_states(platform)
    if pool not in found:
        raise NotFound(f"pool {pool} has no `scaling`", suggestion(pool, found))
    policy, state = found[pool]
    return PoolScalingView(
        pool=pool,
        min_nodes=policy.min_nodes,
        max_nodes=policy.max_nodes,
        max_slots=policy.max_slots,
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
