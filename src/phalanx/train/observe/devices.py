"""Probes of this rank's process and device: memory, and what the driver of the device tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from phalanx.core.contract.records import WarningRecord
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.observe import device_readers
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
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    reader = device_readers.opened(uuid, rocm=torch.version.hip is not None)
    if reader is not None:
        found.append(reader.read)
    return found


def step_timing(info: RankInfo, report: Report, device: torch.device) -> StepTiming:
    """Return the step timing of a rank with a report; one rank per node warns about waiting for data."""

    def warn(message: str) -> None:
        if info.local_rank == 0:
            report.write(WarningRecord(message))

    timing = StepTiming(report, warn=warn)
    for probe in (process_probe(), *device_probes(device)):
        timing.watch(probe)
    return timing
