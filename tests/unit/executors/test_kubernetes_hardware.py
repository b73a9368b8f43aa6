"""GPU labels that are gone for a moment, GPUs of DRA drivers, and devices that are not healthy."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.executors.kubernetes.hardware.dynamic_resources import drivers, refusal, slice_parts
from phalanx.executors.kubernetes.hardware.gpu_labels import KEPT_S, GpuLabels
from phalanx.executors.kubernetes.inventory import nodes_of, served_by_drivers
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool

pytestmark = pytest.mark.unit
GPU = "nvidia.com/gpu"
H100 = {"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.memory": "81920"}


def pool(**fields):
    told = {"name": "k", "executor": "kubernetes", "image": "i:1", **fields}
    return KubernetesPool.model_validate(told)


def node(name="a", version="1", gpus="4", allocatable=None, labels=None, uid="u1"):
    capacity = {"cpu": "8", "memory": "16Gi", **({GPU: gpus} if gpus else {})}
    there = {**capacity, "cpu": "7", **({GPU: allocatable} if allocatable is not None else {})}
    return {
        "metadata": {"name": name, "uid": uid, "resourceVersion": version, "labels": labels or {}},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": there,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def test_labels_that_are_missing_for_a_moment_still_count():
    memory, known = GpuLabels(), {}

    def type_at(version, labels, now):
        found = memory.kept([node(version=version, labels=labels)], now)
        return nodes_of(pool(), found, [], "me", known)[0].slot_type

    assert type_at("1", H100, 0.0) == "H100"
    assert type_at("2", {}, 10.0) == "H100"
    assert memory.until == 10.0 + KEPT_S
    assert type_at("2", {}, 9.9 + KEPT_S) == "H100"
    assert type_at("2", {}, 10.0 + KEPT_S) == ""
    assert memory.until == float("inf")


def test_labels_that_come_back_count_at_once_and_another_node_of_the_name_has_its_own():
    memory = GpuLabels()
    memory.kept([node(labels=H100)], 0.0)
    memory.kept([node(version="2")], 1.0)
    fresh = {**H100, "nvidia.com/gpu.product": "H200"}
    (found,) = memory.kept([node(version="3", labels=fresh)], 2.0)
    assert found["metadata"]["labels"] == fresh
    memory.kept([node(version="4")], 3.0)
    (other,) = memory.kept([node(version="5", uid="u2")], 4.0)
    assert other["metadata"]["labels"] == {}


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 400)), max_size=12))
def test_labels_are_kept_for_the_time_and_no_longer(steps):
    """Whatever the order of disappearing and coming back, a label counts for five minutes more."""
    memory, now, gone_at, known = GpuLabels(), 0.0, None, False
    for number, (there, passed) in enumerate(steps):
        now += passed
        labels = H100 if there else {}
        (found,) = memory.kept([node(version=str(number + 1), labels=labels)], now)
        if there:
            known, gone_at = True, None
        elif known and gone_at is None:
            gone_at = now
        expected = there or (known and gone_at is not None and now - gone_at < KEPT_S)
        known = known and expected
        gone_at = gone_at if known else None
        assert bool(found["metadata"]["labels"]) == expected


def slices(driver="gpu.nvidia.com", node_name="a", kind=None):
    attributes = {} if kind is None else {"type": {"string": kind}}
    device = {"name": "d0", "attributes": attributes}
    spec = {"driver": driver, "nodeName": node_name, "devices": [device]}
    return slice_parts({"metadata": {"name": f"{node_name}-{driver}"}, "spec": spec})


def test_gpus_of_a_dra_driver_close_their_node_and_do_not_make_it_one_of_cpus():
    found = nodes_of(pool(), [node(gpus="")], [], "me", drivers=drivers([slices()]))
    assert "DRA driver gpu.nvidia.com" in found[0].closed
    # A pool that asks for GPUs by name has no node without them otherwise.
    named = nodes_of(pool(slot=GPU), [node(gpus="")], [], "me", drivers=drivers([slices()]))
    assert "DRA driver gpu.nvidia.com" in named[0].closed
    assert not nodes_of(pool(slot="cpu"), [node(gpus="")], [], "me", drivers=drivers([slices()]))[
        0
    ].closed
    # The driver offers extended names as well.
    assert not nodes_of(pool(), [node()], [], "me", drivers=drivers([slices()]))[0].closed


def test_a_node_is_read_again_when_its_driver_is_known():
    known, nodes = {}, [node(gpus="")]
    assert not nodes_of(pool(), nodes, [], "me", known)[0].closed
    assert nodes_of(pool(), nodes, [], "me", known, drivers([slices()]))[0].closed


def test_drivers_of_networks_serve_no_gpus_and_unknown_drivers_do_by_their_devices():
    assert drivers([slices("dra.net"), slices("compute-domain.nvidia.com")]) == {}
    assert drivers([slices("acme.example.com", kind="gpu")]) == {"a": "acme.example.com"}


def test_a_pool_is_refused_where_only_a_driver_has_gpus():
    lacking, with_slots = served_by_drivers(pool(), [node(gpus="")], drivers([slices()]))
    assert refusal("k", lacking, with_slots) == (
        "the GPUs of pool k are served by the DRA driver gpu.nvidia.com (nodes a)"
    )
    both = [node(gpus=""), node("b")]
    assert refusal("k", *served_by_drivers(pool(), both, drivers([slices()]))) == ""
    assert refusal("k", *served_by_drivers(pool(), both, {})) == ""


def test_devices_that_a_node_does_not_offer_are_counted_and_reserved_cpus_are_not():
    (found,) = nodes_of(pool(), [node(allocatable="3")], [], "me")
    assert (found.num_slots, found.num_unhealthy) == (3, 1)
    assert nodes_of(pool(), [node(gpus="")], [], "me")[0].num_unhealthy == 0


def test_nodes_are_not_changed_in_place():
    memory, one = GpuLabels(), node(version="2")
    memory.kept([node(labels=H100)], 0.0)
    before = copy.deepcopy(one)
    memory.kept([one], 1.0)
    assert one == before
