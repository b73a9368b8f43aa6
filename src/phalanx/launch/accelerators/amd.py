"""Accelerators of AMD, read through AMD's own Python library (`amdsmi`), which comes with ROCm."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.core.gang.devices import ROCM, Accelerator, model_of

DRIVER = Path("/dev/kfd")
_LOCK = threading.Lock()


def read() -> tuple[list[Accelerator], str]:
    """Return the devices in the order of HIP, and what is wrong with the driver; empty: nothing."""
    smi = _library()
    if isinstance(smi, str):
        return [], smi
    if smi is None:
        return [], ""
    with _LOCK:
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as error:
            return [], f"the AMD driver does not work: {error}"
        try:
            found = [
                _device(smi, at, one) for at, one in enumerate(smi.amdsmi_get_processor_handles())
            ]
        except smi.AmdSmiException as error:
            return [], f"the AMD driver failed: {error}"
        finally:
            with contextlib.suppress(smi.AmdSmiException):
                smi.amdsmi_shut_down()
    return [device for _, device in sorted(found, key=lambda one: one[0])], ""


def _library() -> ModuleType | str | None:
    """Return the bindings, or why they cannot be used; None on a machine without the library."""
    if importlib.util.find_spec("amdsmi") is None:
        if not DRIVER.exists():
            return None
        return f"{DRIVER} is there, but not AMD's library for it: install amdsmi, as ROCm has it"
    try:
        import amdsmi
    except Exception as error:  # it loads ROCm's library as it is imported, and fails in many ways
        return f"AMD's library amdsmi cannot be used: {error}"
    return amdsmi  # type: ignore[no-any-return]


def _device(smi: ModuleType, at: int, handle: Any) -> tuple[int, Accelerator]:
    index, name, memory, free, problem, link = at, "AMD accelerator", 0, 0, "", "pcie"
    users: tuple[tuple[int, int | None], ...] = ()
    identity = str(at)
    try:
        with contextlib.suppress(AttributeError, smi.AmdSmiException):
            place = smi.amdsmi_get_gpu_enumeration_info(handle)
            index, identity = int(place["hip_id"]), str(place["hip_uuid"])
        name = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        vram = smi.AmdSmiMemoryType.VRAM
        memory = int(smi.amdsmi_get_gpu_memory_total(handle, vram))
        free = memory - int(smi.amdsmi_get_gpu_memory_usage(handle, vram))
        users = tuple(
            (int(one["pid"]), int(one["memory_usage"]["vram_mem"]))
            for one in smi.amdsmi_get_gpu_process_list(handle)
        )
    except smi.AmdSmiException as error:
        problem = f"its driver says: {error}"
    return index, Accelerator(identity, ROCM, model_of(name), memory, free, link, problem, users)
