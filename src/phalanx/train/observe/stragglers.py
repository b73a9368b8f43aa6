"""Each rank's compute time, compared over all ranks once per window of steps.

A rank's compute time begins when it has its micro-batch and ends when the first registered parameter, the
last one that the backward pass reaches, gets its gradient. It does not include waiting for other ranks,
which comes later. The cost is one small collective per window and one hook per run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from phalanx.core.contract.records import StragglersRecord, WarningRecord
from phalanx.core.telemetry.profiles import StragglerWatch, scores
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report


class Stragglers:
    """The events of computing that straggler detection needs; this class measures nothing."""

    def watch(self, model: nn.Module) -> None:
        """Time this model's backward passes."""

    def began(self) -> None:
        """Start the clock of a micro-batch."""

    def stepped(self) -> None:
        """End a step."""


class NoStragglers(Stragglers):
    """Straggler detection that is off."""


class ComputeTimes(Stragglers):
    """Compare the medians of the last `window` steps over all ranks; rank 0 reports."""

    def __init__(
        self,
        window: int,
        place: tuple[int, int],
        channel: ControlChannel,
        report: Report,
        observe: Callable[[Sequence[float]], None] = lambda compute_s: None,
    ) -> None:
        """`place` is (rank, world size); `observe` gets every window's times on all ranks."""
        self._observe = observe
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
        self._observe(times)
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
