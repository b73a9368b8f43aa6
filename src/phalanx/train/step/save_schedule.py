"""The schedule of saves, for every framework. It reads no clock and writes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from phalanx.core.contract.checkpointing import DEFAULT_EVERY_S, SaveInterval
from phalanx.core.training.checkpoints import (
    Best,
    mean_time_between_failures_s,
    recent_mean_time_between_failures_s,
    save_interval_s,
    urgent_interval_s,
)
from phalanx.train.gang.context import RankInfo


class SaveSchedule:
    """Saves every N steps, seconds or passes, at a better value of a metric, or on request.

    While failures come faster than planned saves, there are additional ones: without them, every
    generation would end before its first checkpoint, and the next one would repeat its steps.

    Every rank makes the same calls, except `proposes` and `observe`: rank 0 calls these and sends
    the result to the others as a request.
    """

    def __init__(self, info: RankInfo, now: float, wall_us: int) -> None:
        """`now` is monotonic, in seconds, and `wall_us` the wall clock, as in all methods."""
        self.saved_step = -1
        self._every: SaveInterval = info.checkpoint.every
        self._best: Best | None = info.checkpoint.keep.best
        self._restarts, self._job_started_at = info.restarts, info.job_started_at
        self._failed_at = info.failed_at
        self._best_value: float | None = None
        self._requested = self._improved = False
        self._next_at = math.inf if self._every.seconds is None else now + self._every.seconds
        # What a save costs is not known before the first one.
        self._urgent_at = now + self._urgent_s(math.inf, 0.0, wall_us)

    @property
    def next_at(self) -> float:
        """When a save is due by time."""
        return min(self._next_at, self._urgent_at)

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
        return self._improved or now >= self.next_at

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
        self._urgent_at = now + self._urgent_s(stall_s, write_s, wall_us)

    def _interval_s(self, stall_s: float, write_s: float, wall_us: int) -> float:
        """The time to the next planned save; infinite where steps or passes are counted."""
        if not self._every.auto:
            return math.inf if self._every.seconds is None else self._every.seconds
        began_at = self._job_started_at
        run_s = 0.0 if began_at is None else (wall_us - began_at) / 1e6
        between_s = min(
            mean_time_between_failures_s(self._restarts, run_s),
            recent_mean_time_between_failures_s(self._failed_at, wall_us),
        )
        return save_interval_s(stall_s, write_s, between_s)

    def _urgent_s(self, stall_s: float, write_s: float, wall_us: int) -> float:
        """The time to the next additional save; infinite while failures are rarer than planned saves."""
        between_s = recent_mean_time_between_failures_s(self._failed_at, wall_us)
        # How long counted steps or passes take is not known: the default interval stands for them.
        planned_s = DEFAULT_EVERY_S if self._every.seconds is None else self._every.seconds
        if between_s >= planned_s:
            return math.inf
        return urgent_interval_s(write_s, stall_s, between_s)
