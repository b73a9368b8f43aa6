"""The scaling of a pool under random demand, limits and autoscalers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from phalanx.core.cost.prices import NANO
from phalanx.core.scaling.model import ScalingPolicy, ScalingStep
from phalanx.core.scheduling import Project
from support.scaled_pool import US, ScaledPool

pytestmark = pytest.mark.unit

# Smaller examples take minutes to find, and say no more.
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
PROJECTS = (Project("a", max_slots=12), Project("b"))

policies = st.builds(
    ScalingPolicy,
    max_nodes=st.integers(1, 8),
    min_nodes=st.integers(0, 1),
    max_slots=st.none() | st.integers(4, 40),
    cool_down_up_us=st.integers(0, 60).map(lambda s: s * US),
    cool_down_down_us=st.integers(0, 60).map(lambda s: s * US),
    idle_after_us=st.integers(10, 120).map(lambda s: s * US),
    grow_within_us=st.integers(30, 200).map(lambda s: s * US),
    hourly_nano=st.none() | st.integers(8, 40).map(lambda usd: usd * NANO),
    daily_nano=st.none() | st.integers(8, 40).map(lambda usd: usd * NANO),
)
# Whole nodes, so that what is requested can be counted.
jobs = st.tuples(st.integers(1, 5), st.sampled_from(["a", "b"]), st.integers(20, 400))
events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), jobs),
        st.tuples(st.just("cancel"), st.integers(1, 20)),
        st.tuples(st.just("wait"), st.integers(1, 60)),
        st.tuples(st.just("max"), st.integers(1, 8)),
        st.tuples(st.just("off"), st.booleans()),
        st.tuples(st.just("loses"), st.integers(1, 20)),
    ),
    max_size=25,
)


def check(pool: ScaledPool, step: ScalingStep) -> None:
    there = len(pool.facts().nodes)
    if pool.policy.is_off:
        assert not step.demand.gangs and not step.drain
        assert not step.state.released and not step.state.leaving
        idle = {one.id for one in pool.facts().nodes if one.usable and not one.jobs}
        back = set(step.undrain)  # kept from the next step on
        assert idle - back == set(step.demand.keep) - back
    for gang in step.demand.gangs:
        assert 0 < gang.num_new <= len(gang.nodes)
        job = pool.waiting.get(gang.job)
        if job is not None:
            assert [one.slots for one in gang.nodes] == [4] * job.shape.nodes
    for one in step.decisions:
        if one.kind == "asked":
            most = pool.policy
            assert there + one.num_nodes <= most.max_nodes
            assert most.max_slots is None or (there + one.num_nodes) * 4 <= most.max_slots
            cost = (there + one.num_nodes) * pool.price_nano
            assert most.hourly_nano is None or cost <= most.hourly_nano
            spent = pool.state.spent_nano
            assert most.daily_nano is None or spent + cost <= most.daily_nano
        if one.kind in ("released", "drained"):
            left = there - len(step.state.leaving) - len(step.state.released)
            assert left >= pool.policy.min_nodes


@given(
    policies,
    events,
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(5, 100),
    st.sampled_from([0, 0, 40]),
)
@settings(max_examples=50, phases=NO_SHRINKING)
def test_whole_gangs_within_all_bounds_and_no_lost_work(
    policy, events, gives, delay_s, boots_s
) -> None:
    pool = ScaledPool(policy, gives=gives, delay_s=delay_s, projects=PROJECTS, boots_s=boots_s)
    num, fragile, top = 0, set(), policy.max_nodes
    for kind, value in events:
        if kind == "submit":
            num += 1
            nodes, project, lasts_s = value
            pool.submit(num, nodes, project=project, lasts_s=lasts_s)
        elif kind == "cancel":
            pool.cancel(value)
        elif kind == "max":
            pool.policy = replace(pool.policy, max_nodes=max(value, pool.policy.min_nodes))
            top = max(top, pool.policy.max_nodes)
        elif kind == "off":
            pool.policy = replace(pool.policy, is_off=value)
        elif kind == "loses" and value in pool.running:
            pool.running[value] = replace(pool.running[value], save_s=None)
            fragile.add(value)
        check(pool, pool.turn(value if kind == "wait" else 5))
        # The autoscaler adds what is requested, so the bound holds for what comes as well.
        assert len(pool.nodes) <= top
        assert not fragile & set(pool.waiting)


@given(policies, st.lists(jobs, min_size=1, max_size=6), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=5, phases=NO_SHRINKING)
def test_constant_demand_leads_to_few_decisions(policy, wanted, gives) -> None:
    pool = ScaledPool(policy, gives=gives, projects=PROJECTS, removes_idle=False)
    for num, (nodes, project, _) in enumerate(wanted, 1):
        pool.submit(num, nodes, project=project, lasts_s=10**6)
    for _ in range(300):
        pool.turn(10)
    first, second = pool.steps[:150], pool.steps[150:]
    told = [one for step in first for one in step.decisions]
    assert len(told) <= 16 * len(wanted) + 12
    again = [one for step in second for one in step.decisions]
    # Half an hour later only failed requests are repeated, less and less often.
    assert len(again) <= 6 * len(wanted) + 6
