"""The accelerators of a machine, read by NVIDIA's own bindings from a fake library of its driver."""

import sys
from types import SimpleNamespace

import pytest

from phalanx.core.gang.devices import CUDA, ROCM
from phalanx.launch.accelerators import amd, discover
from support.nvml import GB, LOST, FakeDevice, fake_driver

pytestmark = pytest.mark.unit


@pytest.fixture
def driver(tmp_path_factory, tmp_path, monkeypatch):
    made = fake_driver(tmp_path_factory, tmp_path)
    made.load(monkeypatch)
    return made


class TestNvidia:
    def test_devices_are_read_with_their_model_memory_link_and_users(self, driver):
        driver.have(
            FakeDevice("GPU-a", free=60 * GB, users={41: 20 * GB}),
            FakeDevice("GPU-b", name="Tesla T4", total=16 * GB, free=16 * GB, links=0),
        )
        found = discover({})
        assert found.problems == ()
        first, second = found.devices
        assert (first.id, first.kind, first.model, first.link) == ("GPU-a", CUDA, "H100", "nvlink")
        assert (first.memory_bytes, first.free_bytes) == (80 * GB, 60 * GB)
        assert first.users == ((41, 20 * GB),)
        assert (second.model, second.link, second.users) == ("T4", "pcie", ())

    def test_instances_take_the_place_of_a_device_in_mig_mode(self, driver):
        driver.have(
            FakeDevice("GPU-a"),
            FakeDevice("GPU-b", instances=[("MIG-1", "1g.10gb"), ("MIG-2", "1g.10gb")]),
        )
        assert [(one.id, one.model) for one in discover({}).devices] == [
            ("GPU-a", "H100"),
            ("MIG-1", "H100-1g.10gb"),
            ("MIG-2", "H100-1g.10gb"),
        ]

    def test_a_lost_device_is_said_and_the_others_are_found(self, driver):
        driver.have(FakeDevice("GPU-a"), FakeDevice("GPU-b", error=LOST), FakeDevice("GPU-c"))
        found = discover({})
        assert [one.id for one in found.devices] == ["GPU-a", "GPU-c"]
        assert found.problems == ("device 1 of the NVIDIA driver: GPU is lost",)

    def test_a_device_in_trouble_says_so(self, driver):
        driver.have(FakeDevice("GPU-a", error=999))
        assert discover({}).devices[0].problem == "its driver says: Unknown Error"

    def test_a_driver_that_does_not_start_is_a_problem_and_no_error(self, driver):
        driver.fail(9)
        found = discover({})
        assert found.devices == ()
        assert found.problems == ("the NVIDIA driver does not work: Driver Not Loaded",)

    def test_a_driver_without_devices_has_none(self, driver):
        assert discover({}) == type(discover({}))()

    def test_bindings_that_are_missing_are_named(self, driver, monkeypatch):
        driver.have_h100(1)
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert "pip install nvidia-ml-py" in discover({}).problems[0]

    def test_the_devices_left_to_this_process_are_the_only_ones(self, driver):
        driver.have_h100(4)
        ids = [one.id for one in discover({"CUDA_VISIBLE_DEVICES": "3,GPU-00000001"}).devices]
        assert ids == ["GPU-00000003-h100", "GPU-00000001-h100"]
        assert discover({"CUDA_VISIBLE_DEVICES": ""}).devices == ()


class TestAmd:
    def test_devices_are_read_in_the_order_of_hip(self, monkeypatch):
        class Error(Exception):
            pass

        rows = {"x": (1, "GPU-11"), "y": (0, "GPU-00")}
        fake = SimpleNamespace(
            AmdSmiException=Error,
            AmdSmiMemoryType=SimpleNamespace(VRAM=0),
            amdsmi_init=lambda: None,
            amdsmi_shut_down=lambda: None,
            amdsmi_get_processor_handles=lambda: list(rows),
            amdsmi_get_gpu_enumeration_info=lambda h: {
                "hip_id": rows[h][0],
                "hip_uuid": rows[h][1],
            },
            amdsmi_get_gpu_asic_info=lambda h: {"market_name": "AMD Instinct MI300X"},
            amdsmi_get_gpu_memory_total=lambda h, kind: 192 * GB,
            amdsmi_get_gpu_memory_usage=lambda h, kind: GB,
            amdsmi_get_gpu_process_list=lambda h: [{"pid": 7, "memory_usage": {"vram_mem": GB}}],
        )
        monkeypatch.setattr(amd, "_library", lambda: fake)
        devices, problem = amd.read()
        assert problem == ""
        assert [one.id for one in devices] == ["GPU-00", "GPU-11"]
        assert {(one.kind, one.model, one.users) for one in devices} == {
            (ROCM, "MI300X", ((7, GB),))
        }

    def test_a_driver_that_does_not_start_is_a_problem(self, monkeypatch):
        class Error(Exception):
            pass

        def init():
            raise Error("no device")

        monkeypatch.setattr(
            amd, "_library", lambda: SimpleNamespace(AmdSmiException=Error, amdsmi_init=init)
        )
        assert amd.read() == ([], "the AMD driver does not work: no device")

    def test_a_machine_without_the_driver_has_no_devices(self, monkeypatch, tmp_path):
        monkeypatch.setattr(amd, "DRIVER", tmp_path / "kfd")
        assert amd.read() == ([], "")
