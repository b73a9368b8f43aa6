"""The schedule of saves, for every framework. It reads no clock and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.core.contract.checkpointing import SaveInterval
from phalanx.core.training.checkpoints import (
    Best,
    mean_time_between_failures_s,
    save_interval_s,
)
from phalanx.train.gang.context import RankInfo


class SaveSchedule:
    """Saves every N steps, seconds or passes, at a better value of a metric, or on request.

    Every rank makes the same calls, except `proposes` and `observe`: rank 0 calls these and sends
    the result to the others as a request.
    """

    def __init__(self, info: RankInfo, now: float) -> None:
        """`now` is monotonic, in seconds, as in all methods."""
        self.saved_step = -1
        self._every: SaveInterval = info.checkpoint.every
        self._best: Best | None = info.checkpoint.keep.best
        self._restarts, self._job_started_at = info.restarts, info.job_started_at
        self._best_value: float | None = None
        self._requested = self._improved = False
        self._next_at = now + (self._every.seconds or 0.0)

    @property
    def next_at(self) -> float:
        """When a save is due by time."""
        return self._next_at

    def resume(self, step: int) -> None:
        """Continue from a checkpoint: the state of this step is saved already."""
        self.saved_step = step

    def request(self) -> None:
        """Save at the next boundary."""
        self._requested = True

    def start_best(self, value: float | None) -> None:
        """Set the best value that any checkpoint has so far (rank 0)."""
        self._best_value = value

    def observe(self, metrics: Mapping[str, float | str]) -> None:
        """Look at the newest values: a better one is worth a save (rank 0)."""
        if self._best is None:
            return
        value = metrics.get(self._best.metric)
        if isinstance(value, int | float) and self._best.better(float(value), self._best_value):
            self._best_value = float(value)
            self._improved = True

    def proposes(self, now: float) -> bool:
        """Whether the time or a better value asks for a save (rank 0)."""
        return self._improved or (self._every.seconds is not None and now >= self._next_at)

    def reason_at(self, step: int, agreed: bool) -> str | None:
        """Why to save after `step`: `asked`, `every` or not at all. `agreed`: rank 0 proposed it."""
        if self._requested:
            return "asked"
        if agreed or (self._every.steps and step % self._every.steps == 0):
            return "every"
        return None

    def due_after_pass(self, passes_done: int, step: int) -> bool:
        """Whether to save at the end of a pass over the data."""
        every = self._every.epochs
        return bool(every) and passes_done % (every or 1) == 0 and self.saved_step != step

    def begin(self) -> None:
        """A save begins: earlier requests are met by it."""
        self._requested = self._improved = False

    def saved(
        self, step: int | None, *, now: float, stall_s: float, write_s: float, wall_us: int
    ) -> None:
        """Plan the next save. `step` is None where this one failed.

        `stall_s` is what training waited for it, `write_s` what all of the writing is likely to take,
        `wall_us` the wall clock.
        """
        if step is not None:
            self.saved_step = step
        self._next_at = now + self._interval_s(stall_s, write_s, wall_us)

    def _interval_s(self, stall_s: float, write_s: float, wall_us: int) -> float:
        if not self._every.auto:
            return self._every.seconds or 0.0
        began_at = self._job_started_at
        run_s = 0.0 if began_at is None else (wall_us - began_at) / 1e6
        between_s = mean_time_between_failures_s(self._restarts, run_s)
        return save_interval_s(stall_s, write_s, between_s)
