"""Accelerators of NVIDIA, read through NVML with NVIDIA's own Python bindings (`nvidia-ml-py`)."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from types import ModuleType
from typing import Any

from phalanx.core.gang.devices import CUDA, Accelerator, model_of

LIBRARY = "libnvidia-ml.so.1"
_LOCK = threading.Lock()
_NVLINKS = 18


def read() -> tuple[list[Accelerator], str]:
    """Return the devices in the order of their bus, and what is wrong with the driver; empty: nothing.

    A machine without the library has no devices, and that is no problem. A device that is lost is left
    out, or has a problem where the driver can still name it.
    """
    try:
        # Before the bindings, which take 30 ms to import: most machines have no such library.
        ctypes.CDLL(LIBRARY)
    except OSError:
        return [], ""
    try:
        import pynvml
    except ImportError:
        return [], f"{LIBRARY} is there, but not its bindings: pip install nvidia-ml-py"
    with _LOCK:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return [], f"the NVIDIA driver does not work: {error}"
        try:
            return _devices(pynvml)
        except pynvml.NVMLError as error:
            return [], f"the NVIDIA driver failed: {error}"
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _devices(nvml: ModuleType) -> tuple[list[Accelerator], str]:
    found: list[Accelerator] = []
    problem = ""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            problem = f"device {index} of the NVIDIA driver: {error}"
            continue
        if _has_instances(nvml, handle):
            found += _instances(nvml, handle)
        else:
            found.append(_device(nvml, handle, uuid, _link(nvml, handle)))
    return found, problem


def _device(nvml: ModuleType, handle: Any, uuid: str, link: str) -> Accelerator:
    name, total, free, problem = "", 0, 0, ""
    users: tuple[tuple[int, int | None], ...] = ()
    try:
        name = str(nvml.nvmlDeviceGetName(handle))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
        with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            users = tuple(
                (int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory))
                for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            )
    except nvml.NVMLError as error:
        problem = f"its driver says: {error}"
    return Accelerator(uuid, CUDA, _model(name), total, free, link, problem, users)


def _model(name: str) -> str:
    """`NVIDIA A100-SXM4-40GB MIG 1g.5gb` is `A100-1g.5gb`."""
    whole, _, profile = name.partition(" MIG ")
    return model_of(whole) + (f"-{profile.strip().replace(' ', '')}" if profile else "")


def _has_instances(nvml: ModuleType, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def _instances(nvml: ModuleType, handle: Any) -> list[Accelerator]:
    """Return the MIG instances of a device; in MIG mode the device itself cannot be used."""
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found.append(_device(nvml, instance, str(nvml.nvmlDeviceGetUUID(instance)), ""))
        except nvml.NVMLError:
            continue  # no instance has this number
    return found


def _link(nvml: ModuleType, handle: Any) -> str:
    for link in range(_NVLINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                return "nvlink"
        except nvml.NVMLError:
            break  # it has no more links
    return "pcie"
