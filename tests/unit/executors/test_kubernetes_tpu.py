"""TPU slices of Kubernetes pools: how nodes read, what a gang must be, and what its pods find."""

from dataclasses import replace

import pytest

from phalanx.core.contract.gang import WorldShape
from phalanx.errors import LaunchError
from phalanx.executors.kubernetes.hardware import tpu
from phalanx.executors.kubernetes.inventory import nodes_of
from phalanx.executors.kubernetes.manifests import AttemptNames, PodPlace, pod_object
from unit.executors.test_kubernetes_parts import assignment, node, pool

pytestmark = pytest.mark.unit
LABELS = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
    "cloud.google.com/gke-nodepool": "slice-a",
}


def host(name="t0", **labels):
    capacity = {"cpu": "100", "memory": "190Gi", "google.com/tpu": "4"}
    return node(name, capacity, {**LABELS, **labels})


def gang(nodes, slots=4, ranks=1):
    made = []
    for rank in range(nodes):
        one = assignment(rank)
        role = replace(one.gang.role, slots_per_node=slots)
        facts = replace(one.gang, role=role, world=WorldShape(nodes, ranks))
        made.append(one.model_copy(update={"gang": facts}))
    return made


def test_chips_are_slots_with_a_type_a_memory_a_price_and_a_slice():
    (found,) = nodes_of(pool(price=1.2), [host()], [], "me")
    assert (found.num_slots, found.slot_type) == (4, "tpu-v5-lite-podslice")
    assert found.device_memory_bytes == 16 << 30
    assert found.price_per_slot_hour == 1.2
    assert found.domains == (("slice", "slice-a"),)
    (other,) = nodes_of(pool(slot="google.com/tpu"), [node(), host()], [], "me")
    assert other.id == "k-t0"  # a node without chips is none of such a pool


@pytest.mark.parametrize(
    ("topology", "chips", "hosts"),
    [("4x4", 4, 4), ("2x2x4", 4, 4), ("2x4", 8, 1), ("1x1", 1, 1), ("", 4, 1), ("axb", 4, 1)],
)
def test_hosts_of_a_slice(topology, chips, hosts):
    assert tpu.num_hosts(topology, chips) == hosts


def test_a_gang_is_a_whole_slice_with_one_process_on_each_host():
    tpu.check_slices(gang(4), [LABELS] * 4)
    with pytest.raises(LaunchError, match=r"4 hosts with 4 chips each.*write `nodes: 4`, not 2"):
        tpu.check_slices(gang(2), [LABELS] * 2)
    with pytest.raises(LaunchError, match="write `slots_per_rank: 4`"):
        tpu.check_slices(gang(4, ranks=4), [LABELS] * 4)


def on(*slices, topology="4x4"):
    """Labels of hosts in these slices, one letter a host."""
    return [
        {
            **LABELS,
            "cloud.google.com/gke-nodepool": f"slice-{one}",
            "cloud.google.com/gke-tpu-topology": topology,
        }
        for one in "".join(slices)
    ]


def test_several_slices_are_whole_and_follow_each_other():
    tpu.check_slices(gang(8), on("aaaabbbb"))
    tpu.check_slices(gang(2), on("ab", topology="2x2"))
    for wrong in ("aabb", "aaabbbbb", "abababab", "aaaabbbbb", "aabbbbaa", "aaaabbbbaaaa"):
        with pytest.raises(
            LaunchError, match=r"parts of several TPU slices \(slice-a, slice-b\).*4 hosts"
        ):
            tpu.check_slices(gang(len(wrong)), on(wrong))
    with pytest.raises(LaunchError, match=r"several topologies \(2x8, 4x4\)"):
        tpu.check_slices(gang(8), [*on("aaaa"), *on("bbbb", topology="2x8")])


def test_pods_of_several_slices_find_their_slice_and_the_other_ones():
    names = AttemptNames("ns", "phx-o-j1-a1")
    pods = [names.pod(rank) for rank in range(4)]
    told = tpu.variables(names.anchor, pods, on("aabb", topology="2x4"))
    assert [one["TPU_WORKER_ID"] for one in told] == ["0", "1", "0", "1"]
    assert [one["MEGASCALE_SLICE_ID"] for one in told] == ["0", "0", "1", "1"]
    assert {one["MEGASCALE_NUM_SLICES"] for one in told} == {"2"}
    first = "phx-o-j1-a1-n0.phx-o-j1-a1"
    assert {one["MEGASCALE_COORDINATOR_ADDRESS"] for one in told} == {first}
    assert told[0]["TPU_WORKER_HOSTNAMES"] == f"{first},phx-o-j1-a1-n1.phx-o-j1-a1"
    second = "phx-o-j1-a1-n2.phx-o-j1-a1,phx-o-j1-a1-n3.phx-o-j1-a1"
    assert told[2]["TPU_WORKER_HOSTNAMES"] == told[3]["TPU_WORKER_HOSTNAMES"] == second


def test_pods_of_a_slice_find_each_other_by_name():
    names = AttemptNames("ns", "phx-o-j1-a1")
    pods = [names.pod(rank) for rank in range(2)]
    told = tpu.variables(names.anchor, pods, on("aa", topology="2x4"))[1]
    assert not any(name.startswith("MEGASCALE") for name in told)
    assert told["TPU_WORKER_ID"] == "1"
    hosts = "phx-o-j1-a1-n0.phx-o-j1-a1,phx-o-j1-a1-n1.phx-o-j1-a1"
    assert told["TPU_WORKER_HOSTNAMES"] == hosts
    place = PodPlace("t1", tpu.TPU, 4, told)
    body = pod_object(pool(), names, {"a": "b"}, "u", "d", assignment(1), place)
    spec = body["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("phx-o-j1-a1-n1", "phx-o-j1-a1")
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert env["TPU_TOPOLOGY"] == "2x4"
    assert spec["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4"
    service = tpu.slice_service(names.anchor, {"a": "b"}, [])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= body["metadata"]["labels"].items()


def test_one_host_needs_no_names():
    (told,) = tpu.variables("a", ["a-n0"], on("a"))
    assert told["TPU_WORKER_HOSTNAMES"] == "localhost"
