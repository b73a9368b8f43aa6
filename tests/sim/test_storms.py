"""Storms: nobody is evicted in vain, nothing goes round in circles, what was lent comes back at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.scheduling import ClusterIndex, Plan, PlannerConfig
from phalanx.sim.model import Oracle
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import storms

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", sorted(storms.STORMS))
def test_the_planner_weathers_every_storm(name: str) -> None:
    storm = storms.STORMS[name](0)
    left = storms.run_storm(storm, POLICIES["phalanx"]())
    assert left.num_needless == 0
    assert left.most_in_an_hour <= PlannerConfig().preemptions_per_hour
    assert left.num_done >= left.num_jobs - (name == "never fits")
    if name == "borrow and reclaim":
        assert left.latest_s <= 2 * storm.setup.pass_s + storm.setup.costs.save_s


class Forgetful:
    """Evicts and then forgets for whom: the damage that a hole prevents."""

    name = "forgetful"

    def __init__(self) -> None:
        self._inner = POLICIES["kueue-like"]()

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        for job in list(cluster.reservations):
            del cluster.reservations[job]
        made = self._inner.plan(cluster, now, oracle)
        return replace(made, reservations=())


def test_evictions_in_vain_are_counted() -> None:
    storm = storms.never_fits(0)
    fitting = [replace(job, required=None) if job.num == 99 else job for job in storm.jobs]
    small = [job for job in fitting if job.num != 99]
    # The urgent gang is evicted for, but what is freed goes to whoever comes along.
    gang = replace(fitting[-1], shape=replace(fitting[-1].shape, nodes=32))
    crowd = [replace(job, num=200 + job.num, submit_s=620.0, priority=95) for job in small]
    mine = replace(storm, jobs=(*small, gang, *crowd))
    assert storms.run_storm(mine, Forgetful()).num_needless > 0
