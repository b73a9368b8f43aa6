"""Bounds of a pool that are set while the control plane runs: rights, effect, history, starts and ends."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from integration.rig import Rig, open_rig
from phalanx.cli.app import app
from phalanx.cli.verbs import pools as verbs
from phalanx.core.gang.placement import Node
from phalanx.core.scaling.model import ScalingBounds, ScalingPolicy
from phalanx.errors import NotFound, PermissionDenied, SpecInvalid
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.pools.pool_file import read_pools
from phalanx.sdk import PhalanxClient
from phalanx.services.planning.scaling import scaling_step
from phalanx.services.resources.pools import apply_pools, remove_pool
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration
NODE = Node("far-1", "far", "10.0.0.1", 4, 64, 1 << 36)


class GrowingPool(FakeExecutor):
    """A pool with one node that may have up to four."""

    def __init__(self) -> None:
        super().__init__(nodes=(NODE,))
        self.policy = ScalingPolicy(
            max_nodes=4, cool_down_up_us=0, cool_down_down_us=0, idle_after_us=1
        )
        self.bounds: ScalingBounds | None = None
        self.wanted: list[int] = []
        self.kept: list[str] = []

    def inventory(self):
        policy = self.policy if self.bounds is None else self.bounds.over(self.policy)
        there = super().inventory()
        future = [
            replace(NODE, id=f"far-future-{n}", closed="not started", future=True)
            for n in range(policy.max_nodes - len(there))
        ]
        return [*there, *future]

    def scaling_policies(self):
        return {"far": self.policy}

    def request(self, pool, demand):
        self.wanted = [one.num_new for one in demand.gangs]
        self.kept = list(demand.keep)
        return {}

    def growth(self, pool, jobs):
        return {}

    def set_scaling(self, scaling) -> None:
        pass

    def set_bounds(self, bounds) -> None:
        self.bounds = bounds


@pytest.fixture
def far(rig: Rig) -> GrowingPool:
    pool = GrowingPool()
    object.__setattr__(rig.platform, "executor", RoutedExecutor({"far": pool}))
    return pool


def step(rig: Rig, seconds: float = 10.0) -> None:
    rig.turn()
    scaling_step(rig.platform, rig.clock.advance(seconds))


def told(rig: Rig) -> list[str]:
    return [f"{one.kind}: {one.text}" for one in rig.client.pool_scaling("far").decisions]


def test_a_raised_bound_brings_nodes_at_once_and_is_in_the_history(rig: Rig, far) -> None:
    wide = {"nodes": 6, "slots_per_node": 4}
    with pytest.raises(SpecInvalid, match="at most 4 × 4 slots fit"):
        rig.submit(resources=wide, pool="far")
    step(rig)
    view = rig.client.scale_pool("far", max_nodes=8)
    assert (view.min_nodes, view.max_nodes) == (0, 8)
    assert (view.bounds.source, view.bounds.file_max_nodes) == ("set", 4)
    assert view.bounds.set_by and view.bounds.set_at is not None
    assert rig.client.pool("far").num_future == 7
    num = rig.submit(resources=wide, pool="far")
    step(rig)
    assert far.wanted == [5]
    resized = next(one for one in told(rig) if one.startswith("resized"))
    assert "0 to 8 nodes, set by" in resized
    assert "before: 0 to 4 nodes, from the pool file" in resized
    rig.client.reset_pool_scaling("far")
    rig.client.reset_pool_scaling("far")
    step(rig)
    assert far.wanted == []
    assert rig.client.job(num).state == "queued"
    shown = rig.client.pool("far")
    assert shown.scaling is not None
    assert (shown.scaling.max_nodes, shown.scaling.source, shown.num_future) == (4, "file", 3)
    assert "resized: bounds: 0 to 4 nodes, from the pool file; before: 0 to 8" in str(told(rig))


def test_a_pool_that_is_off_keeps_what_it_has_and_goes_on_when_it_is_on(rig: Rig, far) -> None:
    rig.submit(resources={"nodes": 2, "slots_per_node": 4}, pool="far")
    step(rig)
    assert far.wanted == [1]
    rig.client.scale_pool("far", autoscaling="off")
    step(rig)
    assert (far.wanted, far.kept) == ([], ["far-1"])
    step(rig, 100_000)  # idle for long
    assert far.kept == ["far-1"]
    assert "nothing is requested for j-1" in "".join(told(rig))
    assert "autoscaling of the pool is off" in rig.client.pool_scaling("far").limits[0]
    assert rig.client.job(1).state == "queued"  # it waits for the nodes that could come
    rig.client.scale_pool("far", autoscaling="on")
    step(rig)
    assert far.wanted == [1]
    assert rig.client.pool_scaling("far").bounds.source == "file"


def test_bounds_outlive_the_control_plane_and_hold_before_its_first_step(tmp_path) -> None:
    with open_rig(tmp_path, executor=RoutedExecutor({"far": GrowingPool()})) as rig:  # type: ignore[arg-type]
        rig.client.scale_pool("far", min_nodes=1, max_nodes=9)
    again = GrowingPool()
    with open_rig(tmp_path, executor=RoutedExecutor({"far": again})) as rig:  # type: ignore[arg-type]
        nodes = rig.platform.inventory()
        assert sum(node.future for node in nodes) == 8
        view = rig.client.pool_scaling("far")
        assert (view.min_nodes, view.max_nodes, view.bounds.source) == (1, 9, "set")


def test_what_contradicts_or_says_nothing_is_refused(rig: Rig, far) -> None:
    with pytest.raises(
        SpecInvalid, match=r"keep 5 nodes \(set before or now\) .* at most 4 \(that"
    ):
        rig.client.scale_pool("far", min_nodes=5)
    with pytest.raises(SpecInvalid, match="give min_nodes, max_nodes or autoscaling"):
        rig.client.scale_pool("far")
    with pytest.raises(NotFound, match="pool fat has no `scaling`"):
        rig.client.scale_pool("fat", max_nodes=2)
    with pytest.raises(NotFound, match="pool fat has no `scaling`"):
        rig.client.reset_pool_scaling("fat")
    for body in ({"max_nodes": 0}, {"max_nodes": "3"}, {"min_nodes": -1}, {"max_nodes": 10**7}):
        answer = rig.client._http.put("/api/v1/pools/far/scaling", json=body)
        assert answer.status_code == 422, answer.text
    assert rig.client.pool_scaling("far").bounds.source == "file"


def test_the_right_to_change_the_platform_is_needed(rig: Rig, far) -> None:
    token = rig.client.create_token("reader", ["read"], 3600).token
    with (
        PhalanxClient(rig.client.url, token, transport=rig.transport) as reader,
        pytest.raises(PermissionDenied),
    ):
        reader.scale_pool("far", max_nodes=2)
    assert rig.client.pool_scaling("far").max_nodes == 4


def test_a_pool_that_is_removed_takes_its_bounds_along(rig: Rig, far) -> None:
    gone: list[str] = []
    clusters = SimpleNamespace(known=lambda: {"far": None}, forget=gone.append)
    object.__setattr__(rig.platform, "clusters", clusters)
    rig.client.scale_pool("far", max_nodes=2)
    remove_pool(rig.platform, "far")
    assert gone == ["far"]
    assert rig.client.pool_scaling("far").bounds.source == "file"


def test_an_applied_file_says_that_other_bounds_precede_it(rig: Rig, far) -> None:
    clusters = SimpleNamespace(
        known=lambda: {"far": None},
        connect=lambda pool: SimpleNamespace(
            change={"name": pool.name, "outcome": "changed"}, warning=""
        ),
    )
    object.__setattr__(rig.platform, "clusters", clusters)
    scaling = {"max": 4, "node": {"slots": 4}}
    file = {"schema": 1, "pools": [{"name": "far", "executor": "ray", "scaling": scaling}]}
    read_pools(file, ["ray"])
    assert apply_pools(rig.platform, file, 1, "ada").warnings == []
    rig.client.scale_pool("far", max_nodes=2)
    (warning,) = apply_pools(rig.platform, file, 2, "ada").warnings
    assert "pool far keeps the bounds that were set: 0 to 2 nodes, set by" in warning
    assert "`phalanx pools scale far --reset`" in warning


def test_a_change_of_bounds_changes_the_tag_of_its_pool(rig: Rig, far) -> None:
    http = rig.client._http
    conditional = {"If-Match": http.get("/api/v1/pools/far").headers["ETag"]}
    path = "/api/v1/pools/far/scaling"
    assert http.put(path, json={"max_nodes": 2}, headers=conditional).status_code == 200
    assert http.put(path, json={"max_nodes": 3}, headers=conditional).status_code == 412


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (ScalingBounds(0, "ada", max_nodes=2), (2, 2)),  # the file keeps three
        (ScalingBounds(0, "ada", min_nodes=9), (9, 9)),  # the file has at most six
        (ScalingBounds(0, "ada", min_nodes=1), (1, 6)),
        (ScalingBounds(0, "ada", is_off=True), (3, 6)),
    ],
)
def test_a_bound_that_was_set_holds_and_the_file_gives_way(bounds, expected) -> None:
    found = bounds.over(ScalingPolicy(min_nodes=3, max_nodes=6))
    assert (found.min_nodes, found.max_nodes) == expected
    assert (found.is_off, found.set_by) == (bounds.is_off, "ada")


def test_the_command_changes_bounds_and_says_where_they_come_from(
    rig: Rig, far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "connected", lambda ctx: nullcontext(rig.client))

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["pools", *words])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    said = run("scale", "far", "--min", "1", "--max", "3", "--off")
    assert "1 to 3 nodes; autoscaling is off" in said
    assert "the pool file says 0 to 4" in said
    shown = run("show", "far")
    assert "1 to 3 nodes; autoscaling is off" in shown and "the pool file says 0 to 4" in shown
    assert '"autoscaling": "on"' in run("scale", "far", "--on", "--json")
    assert "1 to 3 nodes" in run("scaling", "far")
    said = run("scale", "far", "--reset")
    assert "0 to 4 nodes" in said and "in the pool file" in said
    for words in ([], ["--reset", "--max", "3"]):
        refused = CliRunner().invoke(app, ["pools", "scale", "far", *words])
        assert refused.exit_code != 0
        assert "--min, --max, --on or --off, or --reset alone" in str(refused.exception)
