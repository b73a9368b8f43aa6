"""Each rank's share of every batch: even, declared, or in proportion to measured speed.

Shares change only between passes and between generations, on all ranks at once. The global batches stay the
same, and so does the gradient, up to rounding.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.core.contract.records import SharesRecord, WarningRecord
from phalanx.core.training.batches import even_parts, parts_of, rebalanced
from phalanx.errors import Problem, SpecInvalid
from phalanx.train.gang.report import Report

EVEN, AUTO = "even", "auto"
MEASURED_STEPS = 20


class Shares:
    """The shares of the ranks, decided at the start of a pass; here even or declared ones."""

    def __init__(self, parts: tuple[int, ...] = ()) -> None:
        self._parts = parts

    def parts(self) -> tuple[int, ...]:
        """Return the ranks' relative shares for the coming pass; empty for even ones."""
        return self._parts

    def observe(self, compute_s: Sequence[float]) -> None:
        """Take the compute times of all ranks over a window; the same values on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier generation."""


class MeasuredShares(Shares):
    """Shares that follow the speed of the ranks."""

    def __init__(self, world_size: int, report: Report) -> None:
        super().__init__(even_parts(world_size))
        self._report = report
        self._windows: list[list[float]] = []

    def parts(self) -> tuple[int, ...]:
        """Return the shares for the coming pass, from all times since the last decision."""
        if self._windows:
            times = [statistics.median(column) for column in zip(*self._windows, strict=True)]
            fresh = rebalanced(self._parts, times)
            self._windows.clear()
            if fresh != self._parts:
                self._parts = fresh
                shares = [round(part / sum(fresh), 4) for part in fresh]
                self._report.write(SharesRecord(shares=shares, compute_s=times))
                text = ", ".join(f"{one:.1%}" for one in shares)
                message = f"batches are now split by measured speed; by rank: {text}"
                self._report.write(WarningRecord(message))
        return self._parts

    def observe(self, compute_s: Sequence[float]) -> None:
        """Record one window's times."""
        self._windows.append(list(compute_s))

    def state_dict(self) -> dict[str, Any]:
        """Return the current shares and the times measured since."""
        return {"parts": list(self._parts), "windows": [list(one) for one in self._windows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the shares for the same number of ranks; else start with even ones."""
        parts = tuple(int(one) for one in state.get("parts", ()))
        if len(parts) == len(self._parts):
            self._parts = parts
            self._windows = [[float(one) for one in row] for row in state["windows"]]


def shares_for(wish: str | tuple[float, ...], world_size: int, report: Report) -> Shares:
    """Return the shares for a setting. Raises SpecInvalid when there is not one share per rank."""
    if wish == EVEN or world_size == 1:
        return Shares()
    if wish == AUTO:
        return MeasuredShares(world_size, report)
    assert not isinstance(wish, str)
    if len(wish) != world_size:
        text = f"has {len(wish)} shares, but the gang has {world_size} ranks"
        raise SpecInvalid([Problem("batch_shares", text)], "give one share for each rank, or auto")
    return Shares(parts_of(wish))
