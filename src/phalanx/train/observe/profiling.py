"""Profiles of a few steps: the time of each section on every rank, and a merged trace.

While no profile runs, rank 0 looks for a request file once per step, and the other ranks do nothing. A
profile first reads clocks where one section of a step ends and the next begins, then torch's profiler
traces some steps. The collectives of a profile run between steps, on the control channel.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phalanx.core.contract.records import ProfileRecord
from phalanx.core.telemetry import traces
from phalanx.core.telemetry.profiles import (
    EXTRAS,
    MAX_STEPS,
    SUFFIX,
    Diagnosis,
    RequestedProfile,
    StepBreakdown,
    judge,
)
from phalanx.errors import Problem, SpecInvalid
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.observe import communication
from phalanx.train.observe.timing import (
    COMPUTE,
    DATA,
    OPTIMIZER,
    OUTSIDE,
    REST,
    STALL,
    CurrentTiming,
    Probe,
    Timing,
    short,
)
from phalanx.train.observe.tracing import Tracer, write_extras

_BACKWARD = 6
_SECTIONS: Mapping[int, tuple[str, str]] = {
    REST: ("rest", "rest_s"),
    DATA: ("data", "data_s"),
    COMPUTE: ("forward", "forward_s"),
    _BACKWARD: ("backward", "backward_s"),
    OPTIMIZER: ("optimizer", "optimizer_s"),
    STALL: ("saving", "stall_s"),
}
"""Of each section of a step: its name in a trace, and its field of `StepBreakdown`."""
_CLOCK_ROUNDS = 20
MAX_RANKS = 64
"""The trace holds the events of so many ranks at most; the others only give their figures."""


def profile_settings(steps: int, trace: int, extras: Sequence[str]) -> RequestedProfile:
    """Check the arguments of `run.profile`. Raises SpecInvalid."""
    problems = []
    for name, value, least in (("steps", steps, 1), ("trace", trace, 0)):
        if not isinstance(value, int) or not least <= value <= MAX_STEPS:
            problems.append(Problem(name, f"must be {least} to {MAX_STEPS}", str(value)))
    problems += [
        Problem("extras", f"must be of {', '.join(EXTRAS)}", one)
        for one in extras
        if one not in EXTRAS
    ]
    if problems:
        raise SpecInvalid(problems, "these are arguments of run.profile")
    return RequestedProfile(0, steps, trace, tuple(extras))


class RecordingTiming(Timing):
    """A timing that records sections for a profile and passes every call to the run's own timing."""

    def __init__(
        self, inner: Timing, settle: Callable[[], None], sync_s: Callable[[], Any]
    ) -> None:
        """`settle` waits for a device; `sync_s` gives a step's seconds of communication.

        These are (all, exposed) seconds, or None where they are not known.
        """
        self.inner = inner
        self.sections: list[tuple[str, int, int]] = []
        self.steps: list[dict[int, int]] = []
        self.communication: list[tuple[float, float]] = []
        self.samples = self._taken = 0
        self._settle, self._sync_s = settle, sync_s
        self._ahead_ns = time.time_ns() - time.perf_counter_ns()
        self._section, self._since = REST, time.perf_counter_ns()
        self._spent: dict[int, int] = {}

    def _turn(self, section: int) -> None:
        self._settle()
        now = time.perf_counter_ns()
        if now > self._since and self._section != OUTSIDE:
            self._spent[self._section] = self._spent.get(self._section, 0) + now - self._since
            ahead = self._ahead_ns
            self.sections.append((_SECTIONS[self._section][0], self._since + ahead, now + ahead))
        self._section, self._since = section, now

    def enter(self, section: int) -> int:
        """Begin a section; return the run's own section that ended."""
        self._turn(section)
        return self.inner.enter(section)

    def backward(self) -> None:
        """Begin the backward section when the gradient of a model's output is computed."""
        if self._section == COMPUTE:
            self._turn(_BACKWARD)

    def took(self, num_samples: int) -> None:
        """Count samples from the loader."""
        self._taken += num_samples
        self.inner.took(num_samples)

    def stepped(self, step: int) -> None:
        """Pass the end of a step on."""
        self.inner.stepped(step)

    def flush(self) -> None:
        """Report the window of the run's own timing."""
        self.inner.flush()

    def watch(self, probe: Probe) -> None:
        """Add a probe to the run's own timing."""
        self.inner.watch(probe)

    def close_step(self) -> None:
        """Close a step at the boundary after it."""
        self._turn(REST)
        self.steps.append(self._spent)
        self.samples += self._taken
        self._spent, self._taken = {}, 0
        communication = self._sync_s()
        if communication is not None:
            self.communication.append(communication)
        self._since = time.perf_counter_ns()

    def split(self, rank: int, seen: traces.TraceTotals | None, traced: int) -> StepBreakdown:
        """Return the means over all steps; communication from the reducer, else from the trace."""
        num = max(1, len(self.steps))
        times = {
            field: sum(one.get(section, 0) for one in self.steps) * 1e-9 / num
            for section, (_, field) in _SECTIONS.items()
        }
        whole = sum(times.values())
        exposed = hidden = ops = 0.0
        busy = None
        if seen is not None and traced:
            exposed, hidden, ops = (x / traced for x in (seen.exposed_s, seen.hidden_s, seen.ops))
            if seen.busy_s is not None and whole:
                busy = min(1.0, seen.busy_s / traced / whole)
        if self.communication:
            exposed = statistics.fmean(one[1] for one in self.communication)
            hidden = statistics.fmean(one[0] - one[1] for one in self.communication)
        exposed = min(exposed, times["forward_s"] + times["backward_s"])
        in_backward = min(exposed, times["backward_s"])
        times["backward_s"] -= in_backward
        times["forward_s"] = max(0.0, times["forward_s"] - (exposed - in_backward))
        times |= {"step_s": whole, "exposed_s": exposed, "hidden_s": hidden, "ops": ops}
        rounded = {name: short(value) for name, value in times.items()}
        return StepBreakdown(
            rank, len(self.steps), samples=self.samples / num, busy=busy, **rounded
        )


@dataclass(slots=True)
class _ActiveProfile:
    """The state of a running profile."""

    settings: RequestedProfile
    first_step: int
    recorder: RecordingTiming
    traced: int = 0

    def all_timed(self) -> bool:
        """Close a timed step; return whether it was the last one."""
        self.recorder.close_step()
        return len(self.recorder.steps) >= self.settings.steps

    def all_traced(self) -> bool:
        """Count a traced step; return whether it was the last one."""
        self.traced += 1
        return self.traced >= self.settings.traced


class Profiler:
    """Runs the profiles that are asked for; each replaces the timing while it records."""

    def __init__(
        self,
        timing: CurrentTiming,
        step: Callable[[], int],
        info: RankInfo,
        channel: ControlChannel,
        report: Report,
        models: Sequence[nn.Module],
        device: torch.device,
    ) -> None:
        """`step` returns the number of steps committed."""
        self._timing, self._step = timing, step
        self._info, self._channel, self._report = info, channel, report
        self._models, self._device = models, device
        self._file = None if info.report_file is None else info.report_file.with_suffix(SUFFIX)
        self._requested: RequestedProfile | None = None  # by the supervisor
        self._own: RequestedProfile | None = None  # by the script
        self._answered = 0
        self._mark: tuple[int, int] | None = None
        self._active: _ActiveProfile | None = None
        self._tracer: Tracer | None = None
        self._hooks: list[Any] = []

    # -- requests --------------------------------------------------------------------------------

    def asked(self) -> bool:
        """Return whether rank 0's supervisor has written a new request file."""
        if self._active is not None or self._info.rank != 0 or self._file is None:
            return False
        try:
            about = os.stat(self._file)
            mark = (about.st_ino, about.st_mtime_ns)
            if mark == self._mark:
                return self._requested is not None and self._requested.request > self._answered
            found = json.loads(self._file.read_text())
            steps, traced = max(1, int(found["steps"])), int(found["traced"])
            extras = tuple(str(one) for one in found["extras"])
            settings = RequestedProfile(int(found["request"]), steps, traced, extras)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self._mark = mark
        self._requested = settings if settings.request > self._answered else None
        return self._requested is not None

    def start(self, settings: RequestedProfile) -> None:
        """Start a profile at the next boundary; called on every rank."""
        self._own = settings

    def boundary(self, agreed: bool) -> None:
        """Start, continue or end a profile; called at the end of every step.

        `agreed`: all ranks start the profile that rank 0 was asked for.
        """
        if self._active is not None:
            self._go_on(self._active)
        elif self._own is not None:
            settings, self._own = self._own, None
            self._begin(settings)
        elif agreed:
            mine = "" if self._requested is None else json.dumps(asdict(self._requested))
            found = json.loads(self._channel.broadcast(mine) or "null")
            if found is not None:
                settings = RequestedProfile(**{**found, "extras": tuple(found["extras"])})
                self._answered = settings.request
                self._begin(settings)

    def finish(self) -> None:
        """Report a profile that the end of the run cuts short."""
        if self._active is not None:
            self._end(self._active)

    # -- its stages ------------------------------------------------------------------------------

    def _begin(self, settings: RequestedProfile) -> None:
        on_gpu = self._device.type == "cuda"
        settle = (lambda: torch.cuda.synchronize(self._device)) if on_gpu else lambda: None
        recorder = RecordingTiming(self._timing.current, settle, self._communication_s)
        self._timing.replace(recorder)
        for model in self._models:
            self._hooks.append(model.register_forward_hook(_marks_backward(recorder)))
        self._active = _ActiveProfile(settings, self._step() + 1, recorder)

    def _communication_s(self) -> tuple[float, float] | None:
        """Return the communication seconds of the newest step, and the exposed part of them."""
        if self._device.type != "cpu":
            return None
        for model in self._models:
            read = getattr(model, "_get_ddp_logging_data", None)
            values = communication.times(read()) if read is not None else {}
            if "gradient_sync_time_seconds" in values:
                return values["gradient_sync_time_seconds"], values["communication_time_seconds"]
        return None

    def _go_on(self, active: _ActiveProfile) -> None:
        if self._tracer is None:
            if not active.all_timed():
                return
            if active.settings.traced > 0:
                self._tracer = Tracer(self._device, active.settings.extras)
                self._tracer.start()
                return
        elif not active.all_traced():
            return
        self._end(active)

    def _end(self, active: _ActiveProfile) -> None:
        """Gather the measurements of all ranks and report them on rank 0. Collective."""
        recorder = active.recorder
        self._timing.replace(recorder.inner)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        tracer, self._tracer, self._active = self._tracer, None, None
        folder = (self._info.checkpoint_dir or Path()) / "profiles"
        stem = f"a{self._info.attempt}-g{self._info.generation}-step-{active.first_step}"
        seen, base_ns = None, time.time_ns()
        events: list[dict[str, Any]] = []
        notes: list[str] = []
        if tracer is not None:
            base_ns, events = tracer.stop()
            seen = traces.figures(events)
            if active.settings.extras:
                notes = write_extras(tracer, folder / f"{stem}-rank-{self._info.rank}")
        split = recorder.split(self._info.rank, seen, active.traced)
        keeps = self._info.rank < MAX_RANKS
        mine = {
            "split": asdict(split),
            "clock": self._clock(),
            "base_ns": base_ns,
            "sections": recorder.sections if keeps else [],
            "events": events if keeps else [],
            "notes": notes,
        }
        rows = self._channel.gather(zlib.compress(json.dumps(mine).encode(), 1))
        if self._info.rank == 0:
            self._tell(active, [json.loads(zlib.decompress(row)) for row in rows], folder, stem)
        # All wait until rank 0 has written: else the next step would wait for it, which shows nowhere.
        self._channel.total([0.0])

    def _clock(self) -> list[tuple[int, int]]:
        found = []
        for _ in range(_CLOCK_ROUNDS):
            entered = time.time_ns()
            self._channel.total([0.0])
            found.append((entered, time.time_ns()))
        return found

    # -- the result ------------------------------------------------------------------------------

    def _tell(
        self, active: _ActiveProfile, rows: list[dict[str, Any]], folder: Path, stem: str
    ) -> None:
        splits = [StepBreakdown(**row["split"]) for row in rows]
        verdict = judge(splits)
        notes = list(dict.fromkeys(note for row in rows for note in row["notes"]))
        clocks = traces.offsets([[(a, b) for a, b in row["clock"]] for row in rows])
        if len(rows) > 1:
            worst = max(one.error_ns for one in clocks) / 1e3
            notes.append(f"the ranks' clocks are known to each other within {worst:.0f} µs")
        if len(rows) > MAX_RANKS:
            notes.append(f"the trace holds the first {MAX_RANKS} of {len(rows)} ranks")
        path = ""
        if active.traced:
            merged = traces.merge([_rank_trace(row) for row in rows], clocks)
            path = self._written(folder / f"{stem}.trace.json.gz", merged, notes)
        self._report.write(
            ProfileRecord(
                request=active.settings.request,
                first_step=active.first_step,
                splits=[row["split"] for row in rows],
                finding=verdict.finding.value,
                said=verdict.said,
                advice=verdict.advice,
                trace=path,
                notes=notes,
            )
        )
        if active.settings.request == 0:
            sys.stderr.write(_words(splits, verdict, path) + "\n")
            sys.stderr.flush()

    def _written(self, path: Path, merged: dict[str, Any], notes: list[str]) -> str:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(path, "wt", compresslevel=4) as file:
                json.dump(merged, file)
        except OSError as error:
            notes.append(f"the trace could not be written: {error}")
            return ""
        return str(path.absolute())


def _rank_trace(row: dict[str, Any]) -> traces.RankTrace:
    sections = [(name, begin, end) for name, begin, end in row["sections"]]
    return traces.RankTrace(row["split"]["rank"], row["base_ns"], row["events"], sections)


def _words(splits: Sequence[StepBreakdown], verdict: Diagnosis, path: str) -> str:
    rows = [
        f"rank {one.rank}: step {one.step_s * 1e3:.2f} ms = data {one.data_s * 1e3:.2f}"
        f" + forward {one.forward_s * 1e3:.2f} + backward {one.backward_s * 1e3:.2f}"
        f" + communication {one.exposed_s * 1e3:.2f} + optimizer {one.optimizer_s * 1e3:.2f}"
        f" + saving {one.stall_s * 1e3:.2f} + rest {one.rest_s * 1e3:.2f};"
        f" hidden communication {one.hidden_s * 1e3:.2f}"
        for one in splits
    ]
    rows.append(f"{verdict.finding.value}: {verdict.said}; {verdict.advice}")
    return "\n".join([*rows, f"trace: {path}"] if path else rows)


def _marks_backward(recorder: RecordingTiming) -> Callable[..., None]:
    def after(module: nn.Module, arguments: Any, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: recorder.backward())  # type: ignore[no-untyped-call]

    return after


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
