"""Clusters in pool files that are applied to a running control plane."""

import pytest

from integration.rig import Rig
from phalanx.errors import Conflict, NotFound, NotSupported, ServerError
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.services.resources.inventory import list_pools, show_pool
from phalanx.services.resources.pools import apply_pools, remove_pool
from phalanx.standalone import pools
from phalanx.standalone.pools import HomeClusters, known_clusters
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration
FILE = {
    "schema": 1,
    "pools": [
        {"name": "far", "executor": "ray"},
        {"name": "near", "nodes": [{"name": "n", "slots": 2}]},
    ],
}


@pytest.fixture
def clusters(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> HomeClusters:
    monkeypatch.setattr(pools, "_ray", lambda home, pool, owner: FakeExecutor(nodes=()))
    found = HomeClusters(HomeLayout(rig.platform.home.root), RoutedExecutor({}))
    object.__setattr__(rig.platform, "clusters", found)
    return found


def test_a_cluster_is_connected_at_once_and_known_at_the_next_start(
    rig: Rig, clusters: HomeClusters
):
    done = apply_pools(rig.platform, FILE, 1, "me")
    assert [(one.name, one.outcome) for one in done.changes] == [
        ("far", "created"),
        ("near", "created"),
    ]
    assert known_clusters(rig.platform.home) == {"far": RayPool(name="far", executor="ray")}
    again = apply_pools(rig.platform, FILE, 2, "me")
    assert {one.outcome for one in again.changes} == {"unchanged"}
    moved = {"schema": 1, "pools": [{"name": "far", "executor": "ray", "address": "h:6379"}]}
    done = apply_pools(rig.platform, moved, 3, "me")
    assert (done.changes[0].outcome, "until the next start" in done.warnings[0]) == (
        "changed",
        True,
    )
    remove_pool(rig.platform, "far")
    assert known_clusters(rig.platform.home) == {}
    with pytest.raises(NotFound):
        remove_pool(rig.platform, "far")


def test_a_cluster_without_nodes_is_shown_with_its_executor(rig: Rig, clusters: HomeClusters):
    apply_pools(rig.platform, FILE, 1, "me")
    assert {one.name: (one.executor, one.num_nodes) for one in list_pools(rig.platform)} == {
        "near": ("local", 1),
        "far": ("ray", 0),
    }
    shown = show_pool(rig.platform, "far")
    assert (shown.executor, shown.spec) == (
        "ray",
        RayPool(name="far", executor="ray").model_dump(mode="json"),
    )


def test_what_cannot_be_connected_is_not_kept(rig: Rig, clusters: HomeClusters, monkeypatch):
    def missing(home: object, pool: object, owner: object) -> None:
        raise ServerError("Ray is not installed here")

    monkeypatch.setattr(pools, "_ray", missing)
    with pytest.raises(ServerError):
        apply_pools(rig.platform, FILE, 1, "me")
    assert known_clusters(rig.platform.home) == {}
    local = {"schema": 1, "pools": [{"name": "local", "executor": "ray"}]}
    with pytest.raises(Conflict, match="this machine's own pool"):
        apply_pools(rig.platform, local, 1, "me")


def test_a_control_plane_without_a_home_for_them_says_so(rig: Rig):
    with pytest.raises(NotSupported, match="pool far is a cluster"):
        apply_pools(rig.platform, FILE, 1, "me")
