"""torch's profiler around a few steps, with optional NVTX ranges and memory snapshots."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

_MEMORY_ENTRIES = 100_000
_GLOO_WORKERS = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_LOOK_S = 0.0005
_PATIENCE_S = 5.0
_NO_GPU = {
    "memory": "no memory snapshot: there is no GPU",
    "nvtx": "no NVTX ranges: there is no GPU",
}


def wait_for_gloo_threads(
    threads: Callable[[], dict[str, tuple[str, str]]], patience_s: float = _PATIENCE_S
) -> None:
    """Wait until every gloo thread has been seen asleep.

    gloo says that a collective is finished, and only then writes its end into the trace. The trainer may
    stop the trace in between, which frees the memory that is about to be written: with more ranks than
    cores, where a thread that wakes another is often put aside for it, most traces crashed or corrupted
    the process sooner or later. `threads` gives (name, state) by thread, as Linux tells them.
    """
    until = time.monotonic() + patience_s
    asleep: set[str] = set()
    while time.monotonic() < until:
        found = threads()
        asleep |= {task for task, (_, state) in found.items() if state != "R"}
        if all(task in asleep for task, (name, _) in found.items() if name == _GLOO_WORKERS):
            return
        time.sleep(_LOOK_S)


def thread_states() -> dict[str, tuple[str, str]]:
    """Return (name, state) of each thread of this process; empty without `/proc`."""
    found = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            before, _, after = (task / "stat").read_text().rpartition(")")
            found[task.name] = (before.partition("(")[2], after.split()[0])
    return found


class Tracer:
    """A trace of everything between `start` and `stop`."""

    def __init__(self, device: torch.device, extras: Sequence[str]) -> None:
        self.on_gpu = device.type == "cuda"
        self.extras = tuple(extras)
        self._open = contextlib.ExitStack()
        activities = [ProfilerActivity.CPU]
        if self.on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)

    def start(self) -> None:
        """Start the trace."""
        if self.on_gpu and "memory" in self.extras:
            torch.cuda.memory._record_memory_history(max_entries=_MEMORY_ENTRIES)
        if self.on_gpu and "nvtx" in self.extras:
            ranges = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
            self._open.enter_context(ranges)
            return  # one profiler at a time: Nsight has the rest
        self._profiler.start()

    def stop(self) -> tuple[int, list[dict[str, Any]]]:
        """Stop; returns the origin of the events' times in nanoseconds, and the events."""
        self._open.close()
        if self.on_gpu and "nvtx" in self.extras:
            return 0, []
        wait_for_gloo_threads(thread_states)
        self._profiler.stop()
        handle, name = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            self._profiler.export_chrome_trace(name)
            found = json.loads(Path(name).read_text(errors="replace"))
        finally:
            os.unlink(name)
        return int(found.get("baseTimeNanoseconds", 0)), list(found["traceEvents"])


def write_extras(tracer: Tracer, stem: Path) -> list[str]:
    """Write the requested extras under names that begin with `stem`; returns one note for each."""
    if not tracer.on_gpu:
        return [_NO_GPU[one] for one in tracer.extras if one in _NO_GPU]
    said = []
    if "memory" in tracer.extras:
        path = stem.with_name(f"{stem.name}.memory.pickle")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
            said.append(f"memory snapshot for pytorch.org/memory_viz: {path}")
        except OSError as error:
            said.append(f"the memory snapshot could not be written: {error}")
        torch.cuda.memory._record_memory_history(enabled=None)
    if "nvtx" in tracer.extras:
        said.append("NVTX ranges were on, for Nsight Systems; torch's own trace was off meanwhile")
    return said
