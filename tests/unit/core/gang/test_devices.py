"""Names of accelerators, the devices behind slots, and the variables that select them."""

from dataclasses import replace

import pytest

from phalanx.core.contract.job import RankCommand, RoleContract
from phalanx.core.frameworks.adapter import REGISTRY
from phalanx.core.frameworks.rank_environment import NodeSetting, select_devices
from phalanx.core.gang.devices import (
    Accelerator,
    DeviceSlots,
    DeviceState,
    hides_all,
    is_model,
    mismatch,
    model_of,
    shared_out,
    visible,
    with_devices,
)
from phalanx.core.gang.placement import Node
from phalanx.schemas.frameworks import framework

pytestmark = pytest.mark.unit

GB = 10**9


def device(name, model="H100", memory=80 * GB, kind="cuda"):
    return Accelerator(name, kind, model, memory, memory)


def node(name="local", slots=4, **traits):
    return Node(name, "local", "127.0.0.1", slots, 8, 1 << 30, **traits)


class TestNames:
    @pytest.mark.parametrize(
        ("said", "short"),
        [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA A100-SXM4-40GB", "A100"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090"),
            ("Tesla V100-PCIE-16GB", "V100"),
            ("NVIDIA H100 NVL", "H100"),
            ("AMD Instinct MI300X OAM", "MI300X"),
            ("NVIDIA RTX A6000", "RTX-A6000"),
            ("", "accelerator"),
        ],
    )
    def test_a_short_name_is_what_users_write(self, said, short):
        assert model_of(said) == short

    @pytest.mark.parametrize(
        ("declared", "found", "same"),
        [
            ("H100", "H100", True),
            ("h100", "NVIDIA H100 80GB HBM3", True),
            ("A10", "A100", False),
            ("A100-40G", "A100", True),
            ("TESLA_V100", "V100", True),
            ("RTX4090", "RTX-4090", True),
            ("H100", "A100", False),
        ],
    )
    def test_a_declared_name_is_compared_by_its_words(self, declared, found, same):
        assert is_model(declared, found) is same

    def test_a_mismatch_says_what_was_declared_and_what_was_found(self):
        said = mismatch("H100", 0, [device("GPU-a", "A100")])
        assert said == "is declared with H100, and its driver finds A100 (GPU-a)"
        said = mismatch("", 80 * GB, [device("GPU-a", memory=40 * GB)])
        assert said == "is declared with devices of 80 GB, and its driver finds 40 GB (GPU-a)"
        # A driver counts less than the label: 79.6 GiB are sold as 80 GB, 15.8 as 16.
        assert not mismatch("H100", 80 * GB, [device("GPU-a", memory=76 * GB)])


class TestVisible:
    FOUR = tuple(device(f"GPU-{i}") for i in range(4))

    @pytest.mark.parametrize(
        ("text", "ids"),
        [
            ("2,0", ["GPU-2", "GPU-0"]),
            ("GPU-3", ["GPU-3"]),
            ("", []),
            ("-1", []),
            ("1,9,0", ["GPU-1"]),  # as CUDA reads it: a list ends at what is no device
            ("1,1", ["GPU-1"]),
            ("GPU-", []),  # not one device only
        ],
    )
    def test_the_variable_is_read_as_cuda_does(self, text, ids):
        left = visible(self.FOUR, {"CUDA_VISIBLE_DEVICES": text})
        assert [one.id for one in left] == ids

    def test_without_a_variable_all_are_visible(self):
        assert visible(self.FOUR, {}) == self.FOUR

    def test_a_job_may_ask_for_no_device(self):
        assert hides_all({"CUDA_VISIBLE_DEVICES": ""}, "cuda")
        assert not hides_all({"CUDA_VISIBLE_DEVICES": "0"}, "cuda")
        assert not hides_all({}, "cuda")


class TestSlots:
    def test_a_device_keeps_its_number_when_another_is_lost_or_comes(self):
        slots = DeviceSlots().with_found("local", [device(n) for n in "abc"])
        assert slots.nodes == {"local": ("a", "b", "c")}
        assert slots.with_found("local", [device("c")]) is slots
        later = slots.with_found("local", [device(n) for n in "dcb"])
        assert later.nodes == {"local": ("a", "b", "c", "d")}

    def test_each_kind_of_device_has_a_node(self):
        found = [device("a", "T4", 16 * GB), device("b"), device("c")]
        slots = DeviceSlots().with_found("local", found)
        assert slots.nodes == {"local": ("b", "c"), "local-t4": ("a",)}
        more = slots.with_found("local", [*found, device("d", "T4", 16 * GB)])
        assert more.nodes["local-t4"] == ("a", "d")

    def test_a_node_says_which_of_its_slots_are_not_offered(self):
        states = [
            DeviceState("local", 0, device("a"), "a"),
            DeviceState("local", 1, None, "b", "its device is lost"),
        ]
        made = with_devices(node(slots=9), states)
        assert (made.num_slots, made.devices) == (2, ("a", "b"))
        assert made.closed_slots == ((1, "its device is lost"),)
        assert (made.slot_type, made.device_memory_bytes) == ("H100", 80 * GB)


class TestSharedOut:
    MACHINE = with_devices(
        node(), [DeviceState("local", i, device(f"GPU-{i}"), f"GPU-{i}") for i in range(4)]
    )

    def test_declared_nodes_get_devices_in_their_order(self):
        first, second = shared_out((node("n0", 2), node("n1", 2)), (self.MACHINE,))
        assert first.devices == ("GPU-0", "GPU-1")
        assert second.devices == ("GPU-2", "GPU-3")
        assert first.slot_type == "H100"

    def test_a_node_that_declares_more_than_was_found_is_closed_and_says_so(self):
        first, second = shared_out(
            (node("n0", 3, slot_type="H100"), node("n1", 3, slot_type="H100")), (self.MACHINE,)
        )
        assert first.devices == ("GPU-0", "GPU-1", "GPU-2")
        assert second.closed == "it declares 3 devices; 1 of 4 are left"
        assert second.devices == ()

    def test_a_node_that_declares_another_model_is_closed_and_says_so(self):
        (only,) = shared_out((node("n0", 4, slot_type="B200"),), (self.MACHINE,))
        assert only.closed == "it is declared with B200, and its driver finds H100 (GPU-0)"

    def test_a_node_that_declares_no_device_has_cpu_slots_and_sees_none(self):
        first, second = shared_out((node("n0", 4), node("n1", 4)), (self.MACHINE,))
        assert first.devices
        assert (second.devices, second.closed, second.device_kind) == ((), "", "cuda")

    def test_a_machine_without_devices_emulates_what_is_declared(self):
        declared = (node("n0", 8, slot_type="H100"),)
        assert shared_out(declared, (node(),)) == declared

    def test_a_lost_device_closes_its_slot_of_the_declared_node(self):
        lost = replace(self.MACHINE, closed_slots=((3, "its device is lost"),))
        _, second = shared_out((node("n0", 2), node("n1", 2)), (lost,))
        assert second.closed_slots == ((1, "its device is lost"),)


def seen(name, local_rank, devices, per_rank=1, env=None, kind="cuda", isolate=False):
    role = RoleContract(
        name="w",
        command=RankCommand(("true",)),
        slots_per_rank=per_rank,
        isolate_devices=isolate,
    )
    setting = NodeSetting(env=env or {}, cpus=1, devices=devices, device_kind=kind)
    return select_devices(dict(env or {}), framework(name), role, local_rank, setting)


class TestVariables:
    FOUR = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")

    def test_ranks_of_torch_choose_theirs_by_local_rank(self):
        env = seen("torch", 2, self.FOUR)
        assert env == {
            "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1,GPU-2,GPU-3",
            "PHALANX_LOCAL_DEVICE": "2",
        }

    @pytest.mark.parametrize("name", ["torch", "horovod"])
    def test_ranks_with_several_slots_see_their_own_devices(self, name):
        env = seen(name, 1, self.FOUR, per_rank=2)
        assert env == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-3", "PHALANX_LOCAL_DEVICE": "0"}

    def test_ranks_without_a_rendezvous_see_their_own_device(self):
        assert seen("none", 3, self.FOUR)["CUDA_VISIBLE_DEVICES"] == "GPU-3"

    @pytest.mark.parametrize("name", ["torch", "horovod", "jax"])
    @pytest.mark.parametrize(("per_rank", "devices"), [(1, "GPU-1"), (2, "GPU-2,GPU-3")])
    def test_ranks_with_isolated_devices_see_their_own(self, name, per_rank, devices):
        env = seen(name, 1, self.FOUR, per_rank, isolate=True)
        assert env == {"CUDA_VISIBLE_DEVICES": devices, "PHALANX_LOCAL_DEVICE": "0"}

    def test_a_rank_sees_one_mig_instance(self):
        env = seen("torch", 1, ("MIG-a", "MIG-b"))
        assert env == {"CUDA_VISIBLE_DEVICES": "MIG-b", "PHALANX_LOCAL_DEVICE": "0"}

    @pytest.mark.parametrize("name", sorted(REGISTRY))
    def test_no_framework_shows_a_device_of_another_job(self, name):
        for local_rank in range(4):
            env = seen(name, local_rank, self.FOUR, env={"CUDA_VISIBLE_DEVICES": "GPU-7"})
            ours = env["CUDA_VISIBLE_DEVICES"].split(",")
            assert set(ours) <= set(self.FOUR)
            assert ours

    def test_a_job_that_asks_for_no_device_keeps_that(self):
        assert seen("torch", 0, self.FOUR, env={"CUDA_VISIBLE_DEVICES": ""}) == {
            "CUDA_VISIBLE_DEVICES": ""
        }

    def test_a_node_without_devices_on_a_machine_with_some_shows_none(self):
        assert seen("torch", 0, ()) == {"CUDA_VISIBLE_DEVICES": ""}

    def test_variables_stay_where_the_devices_are_not_known(self):
        kept = {"CUDA_VISIBLE_DEVICES": "5"}
        assert seen("torch", 0, (), env=kept, kind="") == kept

    def test_devices_of_amd_are_selected_by_the_lowest_variable_alone(self):
        env = seen("none", 1, ("GPU-0", "GPU-1"), kind="rocm", env={"HIP_VISIBLE_DEVICES": "0"})
        assert env == {"ROCR_VISIBLE_DEVICES": "GPU-1", "PHALANX_LOCAL_DEVICE": "0"}
