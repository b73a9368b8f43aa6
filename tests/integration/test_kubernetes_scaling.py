"""Pools of a Kubernetes cluster that grow and shrink: real loop, real requests, a small autoscaler."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs import pools
from phalanx.errors import ExecutorUnavailable, LeaseLost, NotFound
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.executor import KubernetesExecutor
from phalanx.executors.kubernetes.scaling.placeholders import CLAIM_LABEL, GATE
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.scaling import KubernetesScalingSection
from phalanx.server.observe.exposition import Exposition
from phalanx.services.lifecycle.dispatch import dispatch_step
from phalanx.services.planning.scaling import scaling_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.testing.kubernetes.api import FakeKubernetes
from phalanx.testing.kubernetes.autoscaler import REQUESTS, FakeClusterAutoscaler
from phalanx.testing.kubernetes.objects import ApiError
from support.waiting import wait_until

pytestmark = pytest.mark.integration

GPU = "nvidia.com/gpu"
CAPACITY = {"cpu": "16", "memory": "64Gi", "pods": "110", GPU: "4"}
SCALING = {
    "max": 6,
    "node": {"slots": 4, "cpus": 16, "memory": "64GiB"},
    "cool_down": {"up": "1s", "down": "1s"},
    "idle_after": "100s",
    "grow_within": "300s",
    "mechanism": "placeholders",
}


@dataclass
class Growing:
    """A control plane with one pool in a cluster with an autoscaler; both move turn by turn."""

    rig: Rig
    api: FakeKubernetes
    autoscaler: FakeClusterAutoscaler
    executors: list[KubernetesExecutor] = field(default_factory=list)

    def connect(self, **scaling: object) -> RoutedExecutor:
        pool = KubernetesPool.model_validate(
            {
                "name": "kube",
                "executor": "kubernetes",
                "image": "train:1",
                "slot": GPU,
                "checkpoints": "/checkpoints",
                "price": 1.0,
                "scaling": {**SCALING, **scaling},
            }
        )
        path = self.api.kubeconfig(self.rig.platform.home.root / "kubeconfig")
        made = KubernetesExecutor(
            self.rig.platform.home, pool, from_kubeconfig(path), owner="0a1b2c3d"
        )
        assert made.wait_ready(20)
        self.executors.append(made)
        routed = RoutedExecutor({"kube": made})
        object.__setattr__(self.rig.platform, "executor", routed)
        return routed

    def submit(self, nodes: int, **changes: object) -> int:
        spec = {
            "schema": 1,
            "name": "wide",
            "run": ["true"],
            "pool": "kube",
            "resources": {"nodes": nodes, "slots_per_node": 4},
            **changes,
        }
        view = self.rig.client.submit(SubmitRequest(spec=spec, owner="ada")).job
        assert view is not None
        return view.num

    def turn(self, seconds: float = 10.0) -> None:
        """The loops that matter once, then the cluster; both see all changes of the other."""
        now = self.rig.clock.advance(seconds)
        platform = self.rig.platform
        self.seen()
        scheduling_step(platform, now)
        dispatch_step(platform, self.rig.owner, now)
        scaling_step(platform, now)
        self.autoscaler.step(now / 1e6)

    def seen(self) -> None:
        there = {f"kube-{name}" for name in self.autoscaler.nodes()}

        def known() -> bool:
            try:
                nodes = self.executors[-1].inventory()
            except ExecutorUnavailable:
                return False
            return {one.id for one in nodes if not one.future and not one.closed} == there

        wait_until(known, "the nodes to be known")

    def turns(self, number: int) -> None:
        for _ in range(number):
            self.turn()

    def placeholders(self) -> list[dict]:
        return [
            pod
            for pod in self.autoscaler.pods()
            if CLAIM_LABEL in pod["metadata"]["labels"] and "-keep-" not in pod["metadata"]["name"]
        ]

    def decisions(self) -> list[str]:
        return [one.kind for one in reversed(self.rig.client.pool_scaling("kube").decisions)]


@pytest.fixture
def growing(rig: Rig):
    api = FakeKubernetes()
    api.add_namespace("phalanx-default")
    made = Growing(rig, api, FakeClusterAutoscaler(api, CAPACITY))
    yield made
    for one in made.executors:
        one.close()
    api.close()


def test_a_gang_brings_its_nodes_and_starts_on_them(growing: Growing) -> None:
    growing.connect()
    num = growing.submit(3)
    growing.turn()
    pods = growing.placeholders()
    assert len(pods) == 3
    assert {GATE} not in [set(pod["spec"].get("schedulingGates") or ()) for pod in pods]
    assert {pod["spec"]["containers"][0]["resources"]["requests"][GPU] for pod in pods} == {"4"}
    assert "waits for nodes of pool kube: asked for 3 at" in growing.rig.client.why(num).growth
    growing.turns(9)
    assert growing.rig.job(num).state == "starting"
    assert len(growing.autoscaler.nodes()) == 3
    assert growing.placeholders() == []
    assert growing.decisions() == ["asked", "met"]


def test_half_a_gang_starts_nothing_and_is_given_back(growing: Growing) -> None:
    growing.connect()
    growing.autoscaler.gives = 0.5
    num = growing.submit(4)
    growing.turns(20)
    assert growing.rig.job(num).state == "queued"
    assert len(growing.autoscaler.nodes()) == 2
    assert len(growing.placeholders()) == 4
    growing.turns(14)
    assert growing.placeholders() == []
    assert "failed" in growing.decisions()
    assert "got no 4 nodes" in growing.rig.client.why(num).growth
    said = [one.data for one in growing.rig.client.events(num).events if one.kind == "warned"]
    assert "got no 4 nodes" in said[0]["message"]
    # The two nodes stay for `idle_after`, then nothing keeps them from the autoscaler.
    growing.rig.client.stop(num)
    growing.turns(45)
    assert growing.autoscaler.nodes() == []


def test_a_cluster_that_gives_nothing_is_asked_less_and_less_often(growing: Growing) -> None:
    growing.connect()
    growing.autoscaler.gives = 0.0
    num = growing.submit(2)
    growing.turns(32)
    growth = growing.rig.client.why(num).growth
    assert "didn't trigger scale-up: 1 max node group size reached" in growth
    assert growing.placeholders() == []
    growing.turns(300)
    told = Counter(growing.decisions())
    assert told["asked"] <= 4
    view = growing.rig.client.pool_scaling("kube")
    assert [one.job for one in view.failed] == [num]


def test_a_refused_pod_takes_the_whole_gang_back(growing: Growing) -> None:
    growing.connect()
    growing.api.admission.quotas["phalanx-default"] = ("small", {"pods": "2"})
    num = growing.submit(3)
    growing.turn()
    assert growing.placeholders() == []
    view = growing.rig.client.pool_scaling("kube")
    assert [one.job for one in view.failed] == [num]
    assert "exceeded quota" in view.failed[0].text
    growing.turn()
    assert growing.decisions() == ["asked", "failed"]


def test_a_part_of_a_gang_brings_no_nodes_when_the_api_goes_away_in_between(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.connect()
    growing.submit(4)
    answer, made = growing.api.answer, []

    def interrupted(method: str, target: str, data: bytes, kind: str):
        if method == "POST" and target.endswith("/pods"):
            made.append(target)
            if len(made) == 3:
                growing.api.away = True
                raise ApiError(503, "ServiceUnavailable", "going away")
        return answer(method, target, data, kind)

    monkeypatch.setattr(growing.api, "answer", interrupted)
    growing.turn()
    assert len(growing.placeholders()) == 2
    for later in (100, 200, 1000):
        growing.autoscaler.step(growing.rig.clock.now() / 1e6 + later)
    assert growing.autoscaler.num_added == 0
    growing.api.away = False
    growing.turn()
    growing.turns(9)
    assert len(growing.autoscaler.nodes()) == 4


def test_a_leader_that_may_not_act_any_more_requests_nothing(growing: Growing) -> None:
    growing.connect()
    growing.submit(2)

    def lost() -> None:
        raise LeaseLost("another control plane leads")

    object.__setattr__(growing.rig.platform, "may_act", lost)
    with pytest.raises(LeaseLost):
        growing.turn()
    assert growing.placeholders() == []


def test_new_bounds_take_effect_at_once(growing: Growing) -> None:
    routed = growing.connect()
    growing.submit(3)
    growing.turn()
    assert len(growing.placeholders()) == 3
    section = KubernetesScalingSection.model_validate({**SCALING, "max": 2})
    routed.set_scaling("kube", section)
    assert growing.placeholders() == []
    growing.turn()
    assert growing.placeholders() == []
    routed.set_scaling("kube", None)
    growing.turn()
    with pytest.raises(NotFound):
        growing.rig.client.pool_scaling("kube")


def test_bounds_that_are_set_hold_and_no_request_is_made_twice(growing: Growing) -> None:
    growing.connect(max=2)
    growing.submit(1)
    growing.turn()
    before = {pod["metadata"]["uid"] for pod in growing.placeholders()}
    assert len(before) == 1
    growing.rig.client.scale_pool("kube", max_nodes=5)
    num = growing.submit(3)
    growing.turn()
    after = {pod["metadata"]["uid"] for pod in growing.placeholders()}
    assert before < after and len(after) == 4
    growing.connect(max=2)  # another process of the control plane
    growing.turns(14)
    assert growing.rig.job(num).state == "starting"
    assert growing.rig.client.pool("kube").num_future == 1


def test_a_pool_that_is_off_withdraws_its_requests_and_holds_its_nodes(growing: Growing) -> None:
    growing.connect()
    growing.autoscaler.add_nodes(1)
    growing.turn()
    growing.submit(3)
    growing.turn()
    assert len(growing.placeholders()) == 3
    growing.rig.client.scale_pool("kube", autoscaling="off")
    growing.turn()
    assert growing.placeholders() == []
    growing.turns(40)
    assert len(growing.autoscaler.nodes()) == 1
    assert growing.rig.client.pool_scaling("kube").released == []


def test_the_command_shows_bounds_requests_and_reasons(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.connect(min=1, budget={"per_hour": 8})
    growing.submit(1, priority=90)
    growing.submit(2)
    growing.turn()
    monkeypatch.setattr(pools, "connected", lambda ctx: nullcontext(growing.rig.client))
    said = CliRunner().invoke(app, ["pools", "scaling", "kube"]).output
    assert "1 to 6 nodes" in said
    assert "0 there, 1 requested" in said
    assert "8.00 USD an hour" in said
    assert "asked for 1 new nodes of 1 for j-1" in said
    assert "limited: j-2 needs 2 new nodes" in said


def test_a_provisioning_request_is_made_where_the_cluster_has_the_kind(growing: Growing) -> None:
    growing.autoscaler.serve_requests()
    growing.connect(mechanism="auto")
    num = growing.submit(3)
    growing.turn()
    (one,) = [one for key, one in growing.api.store.objects.items() if key[0] == REQUESTS]
    assert [entry["count"] for entry in one["spec"]["podSets"]] == [3]
    assert growing.placeholders() == []
    growing.turns(9)
    assert growing.rig.job(num).state == "starting"
    growing.turn()
    kinds = {key[0] for key in growing.api.store.objects}
    assert not kinds & {REQUESTS, "podtemplates"}


def test_a_failed_provisioning_request_is_a_failure_at_once(growing: Growing) -> None:
    growing.autoscaler.serve_requests()
    growing.autoscaler.gives = 0.0
    growing.connect(mechanism="provisioning_request")
    num = growing.submit(2)
    growing.turns(9)
    assert "stockout" in growing.rig.client.why(num).growth
    assert REQUESTS not in {key[0] for key in growing.api.store.objects}


def test_nodes_of_the_minimum_are_kept_and_others_go(growing: Growing) -> None:
    growing.connect(min=1)
    growing.autoscaler.add_nodes(3)
    growing.turns(60)
    assert len(growing.autoscaler.nodes()) == 1
    growing.turns(60)
    assert len(growing.autoscaler.nodes()) == 1
    assert growing.decisions().count("released") == 1
    assert growing.autoscaler.num_added == 3  # it was kept, not replaced


def test_what_is_decided_is_shown(growing: Growing) -> None:
    growing.connect(budget={"per_hour": 8})
    growing.submit(1, priority=90)
    growing.submit(2)
    growing.turn()
    view = growing.rig.client.pool_scaling("kube")
    assert (view.min_nodes, view.max_nodes, view.num_requested) == (0, 6, 1)
    assert "8.00 USD an hour" in view.limits[0]
    assert growing.rig.client.pool("kube").num_future == 6
    text = Exposition(growing.rig.context).scrape(growing.rig.clock.now()).decode()
    assert 'phalanx_scaling_nodes{pool="kube",state="requested"} 1.0' in text
    assert 'phalanx_scaling_decisions_total{kind="asked",pool="kube"} 1.0' in text
    with pytest.raises(NotFound, match="no `scaling`"):
        growing.rig.client.pool_scaling("other")


def test_a_cluster_without_an_answer_is_left_alone(growing: Growing) -> None:
    growing.connect()
    growing.submit(2)
    growing.turn()
    before = growing.rig.client.pool_scaling("kube")
    growing.api.away = True
    scaling_step(growing.rig.platform, growing.rig.clock.advance(1000.0))
    growing.api.away = False
    after = growing.rig.client.pool_scaling("kube")
    assert after.decisions == before.decisions
    assert after.requests == before.requests


def test_another_control_plane_goes_on_with_the_same_requests(growing: Growing) -> None:
    growing.connect()
    growing.submit(2)
    growing.turn()
    names = {pod["metadata"]["uid"] for pod in growing.placeholders()}
    growing.connect()
    growing.turn()
    assert {pod["metadata"]["uid"] for pod in growing.placeholders()} == names


def test_a_pool_that_is_removed_takes_its_requests_along(growing: Growing) -> None:
    routed = growing.connect(min=1)
    growing.submit(2)
    growing.turn()
    assert growing.placeholders()
    routed.drop("kube")
    assert growing.placeholders() == []
