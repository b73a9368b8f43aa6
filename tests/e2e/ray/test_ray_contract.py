"""The Ray executor keeps the contract of executors, on a real cluster of two raylets."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from e2e.ray.raylets import Raylets
from phalanx.core.contract.job import WarmStart
from phalanx.core.gang.placement import NodeShare, Placement
from phalanx.errors import LaunchError
from phalanx.executors.protocol import SupervisorRef
from phalanx.launch import linux
from phalanx.launch.identity import SupervisorRecord
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import NodeReadyReport
from phalanx.testing.control_plane import FakeControlPlane
from phalanx.testing.executors import ExecutorContract, gang_contract, ref_of
from support.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]


@pytest.fixture(scope="module")
def raylets():
    raylets = Raylets(2, 2)
    yield raylets
    raylets.close()


class RayRig:
    """An executor over the cluster, with a control plane that gives no orders."""

    _jobs = 0

    def __init__(self, raylets, root):
        from phalanx.executors.ray.executor import RayExecutor

        self.make = RayExecutor
        self.raylets, self.root = raylets, root
        self.home = HomeLayout(root / "home")
        self.home.root.mkdir(mode=0o700)
        self.owner = root.name.replace("-", "")[-24:]
        self.pool = RayPool.model_validate(
            {
                "name": "cluster",
                "executor": "ray",
                "address": raylets.address,
                "root": str(root / "nodes"),
                "reserve_within": "10s",
            }
        )
        self.plane = FakeControlPlane()
        self.refs = []
        self.executors = []
        self.executor = self.reborn()
        wait_until(lambda: len(self.executor.inventory()) == 2)

    def assignment(self, job, **changes):
        fields = dict(changes)
        gang = gang_contract(job, num_nodes=fields.pop("num_nodes", 1), grace_s=5.0)
        rank = fields.pop("node_rank", 0)
        made = Assignment(
            gang=gang,
            node_rank=rank,
            node_dir=str(self.home.node_dir(job, 1, rank)),
            workdir="/",
            cwd="/",
            command=["python", "-c", "pass"],
            env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            cpus=1,
            server_url=self.plane.url,
            token=self.plane.token,
            warm=WarmStart(enabled=False),
            **fields,
        )
        self.refs.append(ref_of(made))
        return made

    def pair(self, job):
        nodes = self.executor.inventory()
        placement, made = gang(self, job, nodes)
        self.executor.reserve(placement, made)
        for node, one in zip(nodes, made, strict=True):
            self.executor.start(node, one)
        return tuple(made)

    def record(self, ref):
        layout = HomeLayout(self.root / "nodes" / self.owner)
        return SupervisorRecord.read(
            layout.node_dir(ref.job, ref.attempt, ref.node_rank, ref.incarnation)
        )

    def kill_supervisor(self, ref):
        os.kill(self.record(ref).supervisor.pid, signal.SIGKILL)

    def num_started(self, ref):
        self.plane.wait_for(lambda: self.plane.reports(NodeReadyReport))
        return len({one.pid for one in self.plane.reports(NodeReadyReport)})

    def reborn(self):
        made = self.make(self.home, self.pool, owner=self.owner, log=self.root / "driver.log")
        assert made.wait_ready(60)
        self.executors.append(made)
        wait_until(lambda: self.has_looked(made))
        return made

    def has_looked(self, executor):
        from phalanx.errors import ExecutorUnavailable

        try:
            return executor.inventory()
        except ExecutorUnavailable:
            return False

    def close(self):
        for ref in self.refs:
            self.executor.stop(ref)
        wait_until(lambda: not any(one.alive for one in self.executor.poll(self.refs)))
        for one in self.executors:
            one.close()
        self.plane.away()


@pytest.fixture
def rig(raylets, tmp_path):
    rig = RayRig(raylets, tmp_path)
    yield rig
    rig.close()


class TestRayExecutor(ExecutorContract):
    pass


def gang(rig, job, nodes, slots=(0,)):
    shares = tuple(NodeShare(node.id, node.address, slots) for node in nodes)
    made = [rig.assignment(job, num_nodes=len(nodes), node_rank=rank) for rank in range(len(nodes))]
    return Placement("cluster", shares), made


def in_ray(rig):
    """Groups and actors of this rig's home that Ray still knows, asked by another driver."""
    import subprocess

    script = (
        "import json, ray, sys\n"
        "ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False,"
        " logging_level='error')\n"
        "groups = [g['name'] for g in ray.util.placement_group_table().values()"
        " if g['state'] != 'REMOVED' and sys.argv[3] in g['name']]\n"
        "print(json.dumps([groups, ray.util.list_named_actors()]))\n"
    )
    asked = [sys.executable, "-c", script, rig.raylets.address, f"phalanx-{rig.owner}", rig.owner]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout.splitlines()[-1])


def test_a_gang_is_one_group_and_nothing_of_it_survives_it(rig):
    nodes = rig.executor.inventory()
    placement, made = gang(rig, 1, nodes)
    rig.executor.reserve(placement, made)
    for node, one in zip(nodes, made, strict=True):
        rig.executor.start(node, one)
    groups, actors = in_ray(rig)
    assert (len(groups), len(actors)) == (1, 2)
    markers = [rig.record(ref).marker for ref in rig.refs]
    # The control plane dies in the middle, and another one ends the attempt.
    rig.executor._driver._process.kill()
    rig.executor = rig.reborn()
    assert all(one.alive for one in rig.executor.poll(rig.refs))
    for ref in rig.refs:
        rig.executor.stop(ref)
    wait_until(lambda: not any(one.alive for one in rig.executor.poll(rig.refs)))
    assert in_ray(rig) == [[], []]
    assert not any(linux.tagged(marker) for marker in markers)


def test_a_gang_that_does_not_fit_holds_nothing(rig):
    nodes = rig.executor.inventory()
    first, made = gang(rig, 1, nodes[:1], slots=(0, 1))
    rig.executor.reserve(first, made)
    rig.pool = rig.pool.model_copy(update={"reserve_within": 0.5})
    rig.executor = rig.reborn()
    second, others = gang(rig, 2, nodes)
    with pytest.raises(LaunchError, match="has not reserved all 2 nodes"):
        rig.executor.reserve(second, others)
    groups, _ = in_ray(rig)
    assert len(groups) == 1


def test_a_start_that_fails_gives_the_group_back(rig):
    node = rig.executor.inventory()[0]
    one = rig.assignment(1, code="0" * 64)  # nobody has such code
    with pytest.raises(LaunchError, match="refused to send the code"):
        rig.executor.start(node, one)
    assert in_ray(rig)[0] == []
    assert not rig.executor.poll(rig.refs)[0].alive


def test_an_exit_record_arrives(rig):
    from phalanx.core.jobs.desired import Action
    from phalanx.schemas.wire.supervision import Orders

    one = rig.assignment(1)
    rig.executor.start(rig.executor.inventory()[0], one)
    rig.plane.order(Orders(version="go", action=Action.RELEASE))
    status = wait_until(lambda: next((s for s in rig.executor.poll(rig.refs) if not s.alive), None))
    assert status.exit is not None
    assert status.exit.released


def test_a_supervisor_does_not_survive_its_raylet(rig):
    node = rig.raylets.add(1)
    mine = wait_until(
        lambda: next((n for n in rig.executor.inventory() if node.node_id[:8] in n.id), None)
    )
    one = rig.assignment(1)
    rig.executor.start(mine, one)
    ref = SupervisorRef(1, 1, 0)
    marker = rig.record(ref).marker
    rig.raylets.sigkill(node)
    status = wait_until(
        lambda: next((s for s in rig.executor.poll([ref]) if not s.alive), None), guard_s=20
    )
    assert "raylet" in status.message
    wait_until(lambda: not linux.tagged(marker), guard_s=20)
    assert not any(n.id == mine.id and not n.closed for n in rig.executor.inventory())
    rig.raylets.forget(node)
