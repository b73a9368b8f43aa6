"""Executors of a platform that runs for years remember only whom somebody may still ask for."""

import pytest

from phalanx.executors.local import LocalExecutor
from phalanx.executors.protocol import SupervisorRef
from phalanx.executors.ray.cluster import OperationRefused, RayCluster, TrackedSupervisor
from phalanx.kit.clock import SystemClock
from phalanx.schemas.home import HomeLayout

pytestmark = pytest.mark.unit


def ref(job):
    return {"job": job, "attempt": 1, "node_rank": 0, "incarnation": 0, "shim": None}


def test_the_driver_forgets_who_is_gone_once_nobody_asks(monkeypatch):
    cluster = RayCluster("owner", {})
    gone = {"alive": False, "exit": None, "message": "its actor is gone"}
    cluster._tracked = {(job, 1, 0, 0): TrackedSupervisor(result=dict(gone)) for job in range(5)}
    cluster._tracked[9, 1, 0, 0] = TrackedSupervisor()  # on its way, not yet asked for
    monkeypatch.setattr(cluster, "_find", lambda key: cluster._tracked[key])  # without Ray
    monkeypatch.setattr(cluster, "_remove_group", lambda job, attempt: True)
    found = cluster.poll([ref(0), ref(1)], 60.0)
    assert found == [gone, gone]  # asked again, as after a lost answer: the same
    assert set(cluster._tracked) == {(0, 1, 0, 0), (1, 1, 0, 0), (9, 1, 0, 0)}


def test_no_actor_is_created_on_a_node_that_is_gone(monkeypatch):
    """Its bundle would move to no other node, and the actor would wait for it."""
    cluster = RayCluster("owner", {})
    monkeypatch.setattr(cluster._node_watch, "raylet_is_gone", lambda node: True)
    with pytest.raises(OperationRefused, match="the raylet of abc is gone"):
        cluster.host(1, 1, 0, 1, {"CPU": 1.0}, "abc")


def test_the_local_executor_does_too(tmp_path):
    executor = LocalExecutor(HomeLayout(tmp_path), num_slots=1, clock=SystemClock())
    executor._gone = {SupervisorRef(job, 1, 0) for job in range(5)}
    (status,) = executor.poll([SupervisorRef(3, 1, 0)])
    assert not status.alive and executor._gone == {SupervisorRef(3, 1, 0)}
    assert not executor.poll([SupervisorRef(1, 1, 0)])[0].alive
