"""What the driver of one accelerator tells: NVIDIA's through NVML, AMD's through AMD SMI.

Both libraries are optional (`nvidia-ml-py`, and `amdsmi`, which ROCm brings along), and are imported only
where there is a device. Values that a device or a driver does not have are left out.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

_MIB = 1 << 20
_ENERGY = "phalanx_gpu_energy_joules"
Ask = Callable[[], Any]


class DeviceReader(Protocol):
    """Reads one device of this process."""

    def read(self) -> Mapping[str, float]:
        """The values that it has now, by the names of `core.telemetry.instruments`. Never raises.

        A counter has what was added since the last call.
        """
        ...


def opened(uuid: str, *, rocm: bool) -> DeviceReader | None:
    """The reader of the device with this UUID; None without a library that knows it.

    Its index would be another one where some devices are hidden from this process.
    """
    return open_amd(uuid) if rocm else open_nvidia(uuid)


class _Asked:
    """A reader that asks for one value after the other."""

    def __init__(self, asked: Mapping[str, Ask]) -> None:
        self._asked = asked
        self._energy: float | None = None

    def read(self) -> Mapping[str, float]:
        """See `DeviceReader`."""
        values = dict(self._values())
        total = values.pop(_ENERGY, None)
        if total is not None:
            # A driver that was loaded again counts from 0.
            if self._energy is not None and total >= self._energy:
                values[_ENERGY] = round(total - self._energy, 3)
            self._energy = total
        return values

    def _values(self) -> Iterator[tuple[str, float]]:
        for name, ask in self._asked.items():
            try:
                value = float(ask())
            except Exception:  # drivers refuse with errors of their own, and say "N/A" in between
                continue
            if math.isfinite(value):
                yield name, round(value, 3 if name == _ENERGY else 1)


# -- NVIDIA ------------------------------------------------------------------------------------------


def open_nvidia(uuid: str) -> DeviceReader | None:
    """The reader of a device through NVML; None where NVML or the device is not there."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(_with_prefix(uuid))
    except Exception:  # its own error classes exist only once it is imported
        return None
    return _Asked(_of_nvidia(nvml, handle))


def _with_prefix(uuid: str) -> str:
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def _of_nvidia(nvml: Any, handle: Any) -> dict[str, Ask]:
    def throttled() -> bool:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        heat = nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        return bool(reasons & (heat | nvml.nvmlClocksThrottleReasonHwSlowdown))

    def ecc() -> int:
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))

    return {
        "gpu_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_memory_used_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB,
        "DCGM_FI_DEV_GPU_TEMP": lambda: nvml.nvmlDeviceGetTemperature(
            handle, nvml.NVML_TEMPERATURE_GPU
        ),
        "DCGM_FI_DEV_POWER_USAGE": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "phalanx_gpu_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "phalanx_gpu_throttled": throttled,
        "phalanx_gpu_ecc_errors": ecc,
        _ENERGY: lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    }


# -- AMD ---------------------------------------------------------------------------------------------


def open_amd(uuid: str) -> DeviceReader | None:
    """The reader of a device through AMD SMI; None where the library or the device is not there."""
    try:
        smi = importlib.import_module("amdsmi")
        smi.amdsmi_init()
        handle = next(
            one for one in smi.amdsmi_get_processor_handles() if _hip_uuid(smi, one) == _bare(uuid)
        )
    except Exception:  # it loads ROCm's library as it is imported, and fails in many ways
        return None
    return _Asked(_of_amd(smi, handle))


def _hip_uuid(smi: Any, handle: Any) -> str:
    with suppress(smi.AmdSmiException):
        return _bare(str(smi.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"]))
    return ""


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").lower()


def _first(found: Mapping[str, Any], *names: str) -> float:
    """The first of these that is a number: releases of ROCm name fields anew, and say "N/A"."""
    for name in names:
        with suppress(KeyError, TypeError, ValueError):
            return float(found[name])
    raise KeyError(names[0])


def _of_amd(smi: Any, handle: Any) -> dict[str, Ask]:
    def power() -> float:
        found = smi.amdsmi_get_power_info(handle)
        return _first(found, "socket_power", "current_socket_power", "average_socket_power")

    def energy() -> float:
        found = smi.amdsmi_get_energy_count(handle)  # ticks, and microjoules of each
        ticks = _first(found, "energy_accumulator", "power")
        return ticks * float(found["counter_resolution"]) * 1e-6

    def temperature() -> float:
        sensor, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return float(smi.amdsmi_get_temp_metric(handle, sensor, now))

    def clock() -> float:
        found = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
        return _first(found, "clk", "cur_clk")

    return {
        "gpu_utilization_percent": lambda: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"],
        "gpu_memory_used_mb": lambda: (
            smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM) / _MIB
        ),
        "DCGM_FI_DEV_GPU_TEMP": temperature,
        "DCGM_FI_DEV_POWER_USAGE": power,
        "phalanx_gpu_clock_mhz": clock,
        "phalanx_gpu_ecc_errors": lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)[
            "uncorrectable_count"
        ],
        _ENERGY: energy,
    }
