"""Several executors behind one platform: routing, nodes that leave, growth, and code for far nodes."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from integration.rig import URL, Rig
from integration.test_control_job_life import launch
from phalanx.core.gang.placement import Node, NodeShare, Placement
from phalanx.core.reasons import Cause
from phalanx.core.scaling.model import ScalingPolicy
from phalanx.errors import (
    Conflict,
    ExecutorUnavailable,
    LaunchError,
    NotFound,
    NotSupported,
    SpecInvalid,
)
from phalanx.executors.protocol import Leftovers, SupervisorRef
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.polling import poll_step
from phalanx.services.planning.draining import draining_step
from phalanx.services.planning.scaling import scaling_step
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration
HERE = Node("local", "local", "127.0.0.1", 4, 4, 8 << 30, splittable=True)
FAR = Node("far-1", "far", "10.0.0.1", 4, 4, 8 << 30)


class FarExecutor(FakeExecutor):
    """A pool that holds gangs in one piece and can grow; may be out of reach."""

    def __init__(self) -> None:
        super().__init__(nodes=(FAR,))
        self.away = False
        self.reserved: list[Placement] = []
        self.policy = ScalingPolicy(max_nodes=8, cool_down_up_us=0)
        self.wanted: list[list[tuple[int, int]]] = []  # nodes and slots of each, by gang

    def inventory(self):
        if self.away:
            raise ExecutorUnavailable("the cluster cannot be reached")
        return super().inventory()

    def poll(self, refs):
        if self.away:
            raise ExecutorUnavailable("the cluster cannot be reached")
        return super().poll(refs)

    def reserve(self, placement, gang) -> None:
        self.reserved.append(placement)

    def scaling_policies(self):
        return {"far": self.policy}

    def request(self, pool, demand):
        self.wanted.append([(len(one.nodes), one.nodes[0].slots) for one in demand.gangs])
        return {}

    def growth(self, pool, jobs):
        return {}


@pytest.fixture
def pools():
    return FakeExecutor(nodes=(HERE,)), FarExecutor()


@pytest.fixture
def routed(pools):
    return RoutedExecutor({"local": pools[0], "far": pools[1]})


def test_each_supervisor_is_asked_for_at_its_own_pool(pools, routed):
    here, far = pools
    far.alive.add(SupervisorRef(1, 1, 0))
    refs = [SupervisorRef(1, 1, 0, "far"), SupervisorRef(2, 1, 0, "local")]
    assert [one.alive for one in routed.poll(refs)] == [True, False]
    routed.stop(refs[0])
    assert (here.stopped, far.stopped) == ([], [refs[0]])


def test_a_pool_out_of_reach_closes_its_nodes_and_kills_nobody(pools, routed):
    routed.inventory()
    pools[1].away = True
    nodes = {node.id: node.closed for node in routed.inventory()}
    assert nodes == {"local": "", "far-1": "the cluster cannot be reached"}
    refs = [SupervisorRef(1, 1, 0, "far"), SupervisorRef(2, 1, 0, "local")]
    assert [one.alive for one in routed.poll(refs)] == [True, False]
    pools[1].away = False
    assert [node.closed for node in routed.inventory()] == ["", ""]


def test_only_pools_that_need_it_are_asked_to_reserve(pools, routed):
    routed.reserve(Placement("local", (NodeShare("local", "127.0.0.1", (0,)),)), [])
    far = Placement("far", (NodeShare("far-1", "10.0.0.1", (0,)),))
    routed.reserve(far, [])
    assert pools[1].reserved == [far]
    with pytest.raises(LaunchError, match="no pool 'gone'"):
        routed.reserve(Placement("gone", ()), [])


def test_a_node_that_its_cluster_closes_is_not_shown_as_free(rig: Rig) -> None:
    (node,) = rig.executor.nodes
    said = "the raylet does not answer"
    rig.executor.nodes = (node, replace(node, id="other", closed=said))
    shown = {one.id: (one.state, one.reason) for one in rig.client.nodes()}
    assert shown == {"local": ("open", ""), "other": ("closed", said)}
    (pool,) = rig.client.pools()
    assert (pool.num_slots, pool.num_free, pool.num_closed) == (8, 4, 1)
    rig.client.drain("other", reason="fan")
    assert (rig.client.node("other").state, rig.client.node("other").reason) == ("drained", "fan")


def test_a_job_that_waits_for_a_closed_node_is_not_refused(rig: Rig) -> None:
    rig.executor.nodes = (replace(HERE, closed="being looked at"),)
    num = rig.submit()
    rig.turn()
    assert rig.job(num).state == "queued"
    rig.executor.nodes = (HERE,)
    rig.turn()
    assert rig.job(num).state == "starting"


def test_a_leaving_node_is_left_in_time(rig: Rig) -> None:
    num = rig.submit(grace="30s")
    supervisor = launch(rig, num)
    assert draining_step(rig.platform, rig.clock.now()) == ()
    leaves_at = rig.clock.now() + 12_000_000
    rig.executor.nodes = (replace(HERE, leaves_at=leaves_at, closed="being drained"),)
    assert draining_step(rig.platform, rig.clock.now()) == (num,)
    orders = supervisor.sync().orders
    assert orders.action == "stop"
    assert orders.grace_left_s == pytest.approx(10.0)  # two seconds are left for the rest
    view = rig.job(num)
    assert (view.state, view.reason.code) == ("stopping", "preempted")
    assert "being removed" in view.reason.message
    assert draining_step(rig.platform, rig.clock.now()) == ()
    rig.check_log(num)


def test_a_pool_grows_for_gangs_that_new_nodes_would_start(rig: Rig) -> None:
    far = FarExecutor()
    future = [replace(FAR, id=f"future-{n}", closed="not started", future=True) for n in range(3)]
    far.nodes = (FAR, *future)
    object.__setattr__(rig.platform, "executor", far)
    wide = {"nodes": 2, "slots_per_node": 4}
    first = rig.client.submit(SubmitRequest(spec=_spec("first", wide, 60), owner="ada")).job
    third = {"nodes": 3, "slots_per_node": 4}
    rig.client.submit(SubmitRequest(spec=_spec("second", third, 50), owner="ada"))
    rig.turn()
    scaling_step(rig.platform, rig.clock.now())
    assert far.wanted[-1] == [(2, 4)]  # two nodes are left for the other one, which needs three
    assert first is not None
    rig.client.stop(first.num)
    rig.turn()
    scaling_step(rig.platform, rig.clock.advance(10))
    assert far.wanted[-1] == [(3, 4)]
    far.nodes = (FAR, *(replace(FAR, id=f"far-{n}") for n in (2, 3)))
    rig.turn()
    scaling_step(rig.platform, rig.clock.advance(10))
    assert far.wanted[-1] == []  # it runs


def test_a_pool_grows_by_nodes_that_a_gang_can_be_split_over(rig: Rig) -> None:
    far = FarExecutor()
    far.nodes = tuple(
        replace(FAR, id=f"future-{n}", closed="not started", future=True) for n in range(4)
    )
    object.__setattr__(rig.platform, "executor", far)
    (size,) = {node.num_slots for node in far.nodes}
    resources = {"accelerators": 4 * size}
    num = rig.client.submit(SubmitRequest(spec=_spec("wide", resources, 60), owner="ada")).job.num
    rig.turn()
    scaling_step(rig.platform, rig.clock.now())
    assert far.wanted[-1] == [(4, size)]
    far.nodes = tuple(replace(node, closed="", future=False) for node in far.nodes)
    rig.turn()
    assert len(rig.job(num).nodes) == 4


def test_a_pool_above_its_bound_lets_jobs_save_and_leave_and_no_job_lose_work(rig: Rig) -> None:
    far = FarExecutor()
    far.nodes = tuple(replace(FAR, id=f"far-{n}") for n in (1, 2, 3))
    object.__setattr__(rig.platform, "executor", far)
    object.__setattr__(rig, "executor", far)
    whole = {"nodes": 1, "slots_per_node": 4}
    nums = []
    for name in ("saves", "saves-not"):
        one = rig.client.submit(SubmitRequest(spec=_spec(name, whole, 50), owner="ada")).job
        assert one is not None
        nums.append(one.num)
    rig.turn()
    saves, other = (rig.supervisor(num) for num in nums)
    for supervisor in (saves, other):
        supervisor.ready()
        supervisor.started()
    saves.sync(wire.RestoredReport(seq=saves.next_seq(), generation=0))
    scaling_step(rig.platform, rig.clock.advance(10))
    far.policy = replace(far.policy, max_nodes=1)
    scaling_step(rig.platform, rig.clock.advance(1000))
    view = rig.job(nums[0])
    assert (view.state, view.reason.code) == ("stopping", "node_drained")
    assert "the pool may have 1 nodes" in view.reason.message
    assert rig.job(nums[1]).state == "running"
    assert saves.sync().orders.action == "stop"
    found = rig.client.pool_scaling("far")
    assert [one.kind for one in reversed(found.decisions)] == ["resized", "released", "drained"]
    assert rig.client.node(found.draining[0]).state == "drained"
    far.policy = replace(far.policy, max_nodes=8)
    scaling_step(rig.platform, rig.clock.advance(10))
    assert rig.client.node(found.draining[0]).state == "open"
    rig.check_log(nums[0])


def test_a_pool_that_cannot_grow_refuses_the_section(rig: Rig) -> None:
    nodes = [{"name": "a", "slots": 4}]
    scaling = {"max": 4, "node": {"slots": 4}}
    file = {"schema": 1, "pools": [{"name": "here", "nodes": nodes, "scaling": scaling}]}
    with pytest.raises(SpecInvalid, match="executor local cannot add nodes"):
        rig.client.apply_pools(file)


def _spec(name: str, resources: dict, priority: int) -> dict:
    return {
        "schema": 1,
        "name": name,
        "run": ["true"],
        "resources": resources,
        "priority": priority,
    }


def test_code_is_given_to_the_supervisors_of_its_job_only(rig: Rig) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("train.py"))
    body = archive.getvalue()
    digest = hashlib.sha256(body).hexdigest()
    rig.platform.home.code_dir.mkdir(parents=True, exist_ok=True)
    (rig.platform.home.code_dir / f"{digest}.tar").write_bytes(body)
    request = SubmitRequest(spec=_spec("x", {"nodes": 1}, 50), owner="ada", code=digest)
    view = rig.client.submit(request).job
    assert view is not None
    rig.turn()
    supervisor = rig.supervisor(view.num)
    assert supervisor.assignment.code == digest

    def get(wanted: str, token: str) -> httpx.Response:
        with httpx.Client(base_url=URL, transport=rig.transport) as http:
            return http.get(
                f"/api/v1/supervisors/code/{wanted}",
                params={"job": view.num, "attempt": 1, "node_rank": 0},
                headers={"Authorization": f"Bearer {token}"},
            )

    assert get(digest, supervisor.token).content == body
    assert get(digest, "nonsense").status_code == 401
    assert get("0" * 64, supervisor.token).status_code == 403


def test_a_cluster_is_refused_where_none_can_be_connected(rig: Rig) -> None:
    """It was an error of the server."""
    file = {"schema": 1, "pools": [{"name": "c", "executor": "ray"}]}
    with pytest.raises(NotSupported, match="connects to none") as caught:
        rig.client.apply_pools(file)
    assert caught.value.http_status == 422


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"image": "team/train:1"}, "image"),
        ({"mounts": ["pvc:data:/data"]}, "mounts"),
        ({"kubernetes": {"service_account": "a"}}, "kubernetes"),
        ({"resources": {"shm": "1GB"}}, "resources.shm"),
    ],
)
def test_a_platform_without_containers_refuses_what_needs_them(rig: Rig, keys, path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        rig.submit(**keys)
    (found,) = caught.value.problems
    assert found.path == path
    assert found.message.startswith("this platform runs no containers, only pools with")


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.CLUSTER_QUOTA, "waiting_for_quota"),
        (Cause.UNSCHEDULABLE, "waiting_for_slots"),
    ],
)
def test_a_cluster_without_room_lets_a_job_wait_without_a_limit(
    rig: Rig, cause: Cause, code: str
) -> None:
    num = rig.submit()
    for number in range(8):  # more often than any budget of failed starts allows
        rig.turn(400.0)
        ref = SupervisorRef(num, number + 1, 0)
        assert rig.job(num).state == "starting"
        rig.executor.causes[ref] = ("the cluster is full", cause)
        rig.executor.bury(ref)
        poll_step(rig.platform, rig.clock.now())
        view = rig.job(num)
        assert (view.state, view.reason.code) == ("queued", code)
        assert rig.client.why(num).reason.message == "the cluster is full"
    assert {one.cause for one in view.lineage.restarts} == {cause.value}
    rig.check_log(num)


def test_a_failed_start_of_a_cluster_is_charged_as_one(rig: Rig) -> None:
    num = rig.submit()
    for number in range(4):
        rig.turn(400.0)
        ref = SupervisorRef(num, number + 1, 0)
        rig.executor.causes[ref] = ("the image cannot be pulled", Cause.START_FAILED)
        rig.executor.bury(ref)
        poll_step(rig.platform, rig.clock.now())
    view = rig.job(num)
    assert view.state == "failed"
    assert "the image cannot be pulled" in view.reason.message
    rig.check_log(num)


def test_a_drained_pod_of_a_running_job_is_a_drain_and_a_failed_start_is_none_any_more(
    rig: Rig,
) -> None:
    for cause, told in ((Cause.NODE_DRAINED, "node_drained"), (Cause.START_FAILED, "node_lost")):
        num = rig.submit()
        supervisor = launch(rig, num)
        ref = SupervisorRef(num, 1, 0)
        rig.executor.causes[ref] = ("evicted", cause)
        rig.executor.bury(ref)
        poll_step(rig.platform, rig.clock.now())
        view = rig.job(num)
        assert [one.cause for one in view.lineage.restarts] == [told]
        assert supervisor is not None
        rig.client.stop(num)


def test_a_pool_that_is_dropped_ends_its_connections(rig: Rig) -> None:
    class Closing(FakeExecutor):
        closed = False

        def close(self) -> None:
            self.closed = True

    one, other = Closing(), Closing()
    routed = RoutedExecutor({"a": one, "b": other})
    routed.drop("a")
    assert (one.closed, other.closed) == (True, False)


def test_what_is_left_in_a_cluster_is_forgotten_once_no_job_of_its_owner_runs_there(
    rig: Rig,
) -> None:
    left = [
        Leftovers("mine", True, 1, 0, ("j-9",), ("a",)),
        Leftovers("dead", False, 2, 1, ("j-1",), ("a",)),
    ]
    removed: list[str] = []
    rig.executor.leftovers = lambda pool: left  # type: ignore[attr-defined]
    rig.executor.forget = lambda pool, owner: removed.append(owner) or 1  # type: ignore[attr-defined, func-returns-value]
    gone: list[str] = []
    clusters = SimpleNamespace(known=lambda: {"local": None}, forget=gone.append)
    object.__setattr__(rig.platform, "clusters", clusters)
    assert [(one.owner, one.is_own) for one in rig.client.leftovers("local")] == [
        ("mine", True),
        ("dead", False),
    ]
    with pytest.raises(NotFound, match="no cluster is connected as pool far"):
        rig.client.leftovers("far")
    with pytest.raises(NotFound, match="has the owner deed"):
        rig.client.forget_pool("local", "deed")
    supervisor = launch(rig, rig.submit())
    for owner in (None, "mine"):
        with pytest.raises(Conflict, match="j-1 still run in pool local"):
            rig.client.forget_pool("local", owner)
    done = rig.client.forget_pool("local", "dead")
    assert (done.num_pods, done.pool_removed, removed, gone) == (1, False, ["dead"], [])
    supervisor.ended()
    supervisor.leave()
    rig.turn()
    assert rig.client.forget_pool("local").pool_removed
    assert (removed, gone) == (["dead", "mine"], ["local"])
