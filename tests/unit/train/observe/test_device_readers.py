"""Readers of devices: one contract for NVIDIA and AMD, on libraries that answer and refuse as theirs do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.core.telemetry.instruments import INSTRUMENTS
from phalanx.train.observe import device_readers
from phalanx.train.observe.device_readers import DeviceReader

pytestmark = pytest.mark.unit
UUID = "8a3c"


class Refusal(Exception):
    """What a driver raises for a value that it does not have."""


@dataclass
class FakeDevice:
    """A device; what is None the driver refuses."""

    busy: Any = 87
    memory: Any = 3 << 30
    celsius: Any = 61
    watts: Any = 640.5
    mhz: Any = 1755
    errors: Any = 0
    joules: Any = 100.0
    throttle: Any = 0
    uuids: list[str] = field(default_factory=lambda: [UUID])

    def has(self, name: str) -> Any:
        """One value. Raises Refusal."""
        value = getattr(self, name)
        if value is None:
            raise Refusal(name)
        return value


def nvml(one: FakeDevice) -> SimpleNamespace:
    """NVIDIA's bindings."""

    def by_uuid(uuid: str) -> str:
        if uuid.removeprefix("GPU-") not in one.uuids:
            raise Refusal(uuid)
        return uuid

    return SimpleNamespace(
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlClocksThrottleReasonSwThermalSlowdown=32,
        nvmlClocksThrottleReasonHwSlowdown=8,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=one.has("busy")),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=one.has("memory")),
        nvmlDeviceGetTemperature=lambda handle, sensor: one.has("celsius"),
        nvmlDeviceGetPowerUsage=lambda handle: one.has("watts") * 1000,
        nvmlDeviceGetClockInfo=lambda handle, kind: one.has("mhz"),
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, since: one.has("errors"),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: one.has("throttle"),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: one.has("joules") * 1000,
    )


def amdsmi(one: FakeDevice, *, old: bool = False) -> SimpleNamespace:
    """AMD's bindings, as of ROCm 7 or of 6.0."""
    power, energy, clock = ("socket_power", "energy_accumulator", "clk")
    if old:
        power, energy, clock = ("average_socket_power", "power", "cur_clk")
    return SimpleNamespace(
        AmdSmiException=Refusal,
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        AmdSmiClkType=SimpleNamespace(GFX=0),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["another", *one.uuids],
        amdsmi_get_gpu_enumeration_info=lambda handle: {"hip_id": 0, "hip_uuid": f"GPU-{handle}"},
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": one.has("busy")},
        amdsmi_get_gpu_memory_usage=lambda handle, kind: one.has("memory"),
        amdsmi_get_temp_metric=lambda handle, sensor, metric: one.has("celsius"),
        amdsmi_get_power_info=lambda handle: {power: one.has("watts"), "gfx_voltage": "N/A"},
        amdsmi_get_clock_info=lambda handle, kind: {clock: one.has("mhz")},
        amdsmi_get_gpu_total_ecc_count=lambda handle: {"uncorrectable_count": one.has("errors")},
        amdsmi_get_energy_count=lambda handle: {
            energy: one.has("joules") * 1e6 / 15.3,
            "counter_resolution": 15.3,
        },
    )


Opened = Callable[[FakeDevice, str], DeviceReader | None]
LIBRARIES = {
    "nvidia": ("pynvml", nvml),
    "amd": ("amdsmi", amdsmi),
    "amd of ROCm 6.0": ("amdsmi", lambda one: amdsmi(one, old=True)),
}


@pytest.fixture(params=LIBRARIES)
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens a device with one of the libraries."""
    name, made = LIBRARIES[request.param]

    def open_it(one: FakeDevice, uuid: str) -> DeviceReader | None:
        monkeypatch.setitem(sys.modules, name, made(one))
        return device_readers.opened(uuid, rocm=name == "amdsmi")

    return open_it


def of(opened: Opened, one: FakeDevice) -> DeviceReader:
    reader = opened(one, UUID)
    assert reader is not None
    return reader


def test_values_have_the_names_and_units_of_the_instruments(opened: Opened) -> None:
    found = dict(of(opened, FakeDevice()).read())
    found.pop("phalanx_gpu_throttled", None)  # AMD SMI has no reason of a low clock for all cards
    assert found == {
        "gpu_utilization_percent": 87,
        "gpu_memory_used_mb": 3072,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 640.5,
        "phalanx_gpu_clock_mhz": 1755,
        "phalanx_gpu_ecc_errors": 0,
    }
    assert found.keys() <= INSTRUMENTS.keys()


def test_energy_is_what_was_used_since_the_last_read(opened: Opened) -> None:
    one = FakeDevice()
    reader = of(opened, one)
    reader.read()
    one.joules = 350.25
    assert reader.read()["phalanx_gpu_energy_joules"] == pytest.approx(250.25)
    one.joules = 10.0  # the driver was loaded again
    assert "phalanx_gpu_energy_joules" not in reader.read()
    one.joules = 12.0
    assert reader.read()["phalanx_gpu_energy_joules"] == pytest.approx(2)


@pytest.mark.parametrize("value", [None, "N/A", float("nan")])
def test_what_a_device_does_not_have_is_left_out(opened: Opened, value: object) -> None:
    one = FakeDevice(watts=value, joules=value, errors=value)
    found = of(opened, one).read()
    assert "DCGM_FI_DEV_POWER_USAGE" not in found and "phalanx_gpu_ecc_errors" not in found
    assert found["gpu_utilization_percent"] == 87


def test_a_device_that_is_lost_has_no_values(opened: Opened) -> None:
    one = FakeDevice()
    reader = of(opened, one)
    for name in ("busy", "memory", "celsius", "watts", "mhz", "errors", "joules", "throttle"):
        setattr(one, name, None)
    assert reader.read() == {}


def test_a_device_that_the_library_does_not_know_has_no_reader(opened: Opened) -> None:
    assert opened(FakeDevice(), "ffff") is None


def test_without_its_library_a_device_has_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, None)
    assert device_readers.opened(UUID, rocm=False) is None
    assert device_readers.opened(UUID, rocm=True) is None


@pytest.mark.parametrize(("reasons", "said"), [(0, 0), (4, 0), (8, 1), (32, 1)])
def test_a_limit_of_power_that_was_set_is_not_throttling(
    monkeypatch: pytest.MonkeyPatch, reasons: int, said: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(FakeDevice(throttle=reasons)))
    reader = device_readers.opened(UUID, rocm=False)
    assert reader is not None and reader.read()["phalanx_gpu_throttled"] == said
