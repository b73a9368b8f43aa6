"""Each rank's compute time, compared over all ranks once per window of steps.

A rank's clock runs from the moment it has its micro-batch to the moment its backward pass reaches the
first parameter it registered, which is the last one to get a gradient. Waiting for other ranks comes
after that. One small collective per window; one hook per run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from phalanx.core.contract.records import StragglersRecord, WarningRecord
from phalanx.core.telemetry.stragglers import StragglerWatch, scores
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report


class Stragglers(Protocol):
    """The events of computing that straggler detection needs."""

    def watch(self, model: nn.Module) -> None:
        """Time this model's backward passes."""
        ...

    def began(self) -> None:
        """Start the clock of a micro-batch."""
        ...

    def stepped(self) -> None:
        """End a step."""
        ...


class NoStragglers:
    """Straggler detection that is off."""

    def watch(self, model: nn.Module) -> None:
        """Do nothing."""

    def began(self) -> None:
        """Do nothing."""

    def stepped(self) -> None:
        """Do nothing."""


class ComputeTimes:
    """Compare the medians of the last `window` steps over all ranks; rank 0 reports."""

    def __init__(
        self, window: int, place: tuple[int, int], channel: ControlChannel, report: Report,
        listen: Callable[[Sequence[float]], None] = lambda compute_s: None,
    ) -> None:  # fmt: skip
        """`place` is (rank, world size); `listen` gets every window's times on all ranks."""
        self._listen = listen
        self._window, self._channel, self._report = window, channel, report
        self._rank, self._world_size = place
        self._watch = StragglerWatch()
        self._since: int | None = None
        self._sum_ns = 0
        self._steps_s: list[float] = []
        self._named: list[int] = []
        self._handle: object | None = None

    def watch(self, model: nn.Module) -> None:
        """Time this model's backward passes; only the first model counts."""
        first = next((one for one in model.parameters() if one.requires_grad), None)
        if first is not None and self._handle is None:
            self._handle = first.register_hook(self._arrived)  # type: ignore[no-untyped-call]

    def _arrived(self, gradient: torch.Tensor) -> None:
        if gradient.is_cuda:
            torch.cuda.current_stream(gradient.device).synchronize()
        if self._since is not None:
            self._sum_ns += time.perf_counter_ns() - self._since
            self._since = None

    def began(self) -> None:
        """Start the clock of a micro-batch."""
        self._since = time.perf_counter_ns()

    def stepped(self) -> None:
        """End a step; at the end of a window compare all ranks. Collective then."""
        self._steps_s.append(self._sum_ns * 1e-9)
        self._sum_ns = 0
        if len(self._steps_s) < self._window:
            return
        row = [0.0] * self._world_size
        row[self._rank] = statistics.median(self._steps_s)
        self._steps_s.clear()
        times = self._channel.total(row)
        self._listen(times)
        if self._rank == 0:
            self._tell(times)

    def _tell(self, times: list[float]) -> None:
        found = self._watch.observe(times)
        rows = [round(one, 4) for one in scores(times)]
        self._report.write(StragglersRecord(scores=rows, ranks=found))
        if found and found != self._named:
            names = ", ".join(f"rank {rank} (score {rows[rank]:.2f})" for rank in found)
            message = f"slow at computing: {names}; all ranks wait for the slowest"
            self._report.write(WarningRecord(message))
        self._named = found
