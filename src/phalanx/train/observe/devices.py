"""Memory and utilisation of this rank's process and device; NVML where there is one.

NVML comes with the optional package `nvidia-ml-py`. Values that it does not have are left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from phalanx.core.contract.records import WarningRecord
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.observe.timing import Probe, StepTiming

_MIB = 1 << 20
_STATM = Path("/proc/self/statm")


def process_probe(statm: Path = _STATM) -> Probe:
    """Return a probe of the process's resident memory."""
    page = os.sysconf("SC_PAGE_SIZE")

    def probe() -> Mapping[str, float]:
        try:
            return {"process_resident_memory_bytes": int(statm.read_text().split()[1]) * page}
        except (OSError, IndexError, ValueError):
            return {}

    return probe


def device_probes(device: torch.device) -> list[Probe]:
    """Return the probes of a device; none for the CPU."""
    if device.type != "cuda":
        return []

    def allocator() -> Mapping[str, float]:
        peak = torch.cuda.max_memory_allocated(device) / _MIB
        return {"gpu_memory_allocated_mb": round(peak, 1)}

    found: list[Probe] = [allocator]
    nvml = open_nvml()
    if nvml is not None:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        probe = nvml_probe(nvml, uuid)
        if probe is not None:
            found.append(probe)
    return found


def open_nvml() -> Any | None:
    """Load NVIDIA's management library; None where it is not installed."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # its own error classes exist only once it is imported
        return None
    return nvml


def nvml_probe(nvml: Any, uuid: str) -> Probe | None:
    """Return a probe of the device with this UUID; its index differs where some devices are hidden."""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    except nvml.NVMLError:
        return None
    asked: tuple[tuple[str, Callable[[], float]], ...] = (
        ("gpu_utilization_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        ("gpu_memory_used_mb", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB),
        (
            "DCGM_FI_DEV_GPU_TEMP",
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        ),
        ("DCGM_FI_DEV_POWER_USAGE", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    )

    def probe() -> Mapping[str, float]:
        values: dict[str, float] = {}
        for name, ask in asked:
            try:
                values[name] = round(float(ask()), 1)
            except nvml.NVMLError:
                continue
        return values

    return probe


def step_timing(info: RankInfo, report: Report, device: torch.device) -> StepTiming:
    """Return the step timing of a rank with a report; one rank per node warns about waiting for data."""

    def warn(message: str) -> None:
        if info.local_rank == 0:
            report.write(WarningRecord(message))

    timing = StepTiming(report, warn=warn)
    for probe in (process_probe(), *device_probes(device)):
        timing.watch(probe)
    return timing
