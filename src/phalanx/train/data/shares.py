"""Which part of every batch each rank gets: even, declared, or in proportion to measured speed.

Shares change between passes and between generations only, on all ranks at once. The global batches stay
what they are, and so does the gradient, up to rounding.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from phalanx.core.contract.records import SharesRecord, WarningRecord
from phalanx.core.training.batches import even_parts, parts_of, rebalanced
from phalanx.errors import Problem, SpecInvalid
from phalanx.train.gang.report import Report

EVEN, AUTO = "even", "auto"
MEASURED_STEPS = 20


class Shares(Protocol):
    """Decides at the start of a pass."""

    def parts(self) -> tuple[int, ...]:
        """The ranks' relative shares, for `core.batches.Plan`; empty for even ones."""
        ...

    def observe(self, compute_s: Sequence[float]) -> None:
        """Compute times of all ranks over some steps; the same values on every rank."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what an earlier generation knew."""
        ...


class FixedShares:
    """What was declared; nothing for even shares."""

    def __init__(self, parts: tuple[int, ...] = ()) -> None:
        self._parts = parts

    def parts(self) -> tuple[int, ...]:
        """What was declared."""
        return self._parts

    def observe(self, compute_s: Sequence[float]) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


class MeasuredShares:
    """Shares that follow the speed of the ranks."""

    def __init__(self, world_size: int, report: Report) -> None:
        self._parts = even_parts(world_size)
        self._report = report
        self._windows: list[list[float]] = []

    def parts(self) -> tuple[int, ...]:
        """Shares for the coming steps, from all times since they were last decided."""
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
        """Remember one window's times."""
        self._windows.append(list(compute_s))

    def state_dict(self) -> dict[str, Any]:
        """The shares in force and what was measured since."""
        return {"parts": list(self._parts), "windows": [list(one) for one in self._windows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them if there are as many ranks; else begin evenly."""
        parts = tuple(int(one) for one in state.get("parts", ()))
        if len(parts) == len(self._parts):
            self._parts = parts
            self._windows = [[float(one) for one in row] for row in state["windows"]]


def shares_for(wish: str | tuple[float, ...], world_size: int, report: Report) -> Shares:
    """Raises SpecInvalid when the declared shares are not one per rank."""
    if wish == EVEN or world_size == 1:
        return FixedShares()
    if wish == AUTO:
        return MeasuredShares(world_size, report)
    assert not isinstance(wish, str)
    if len(wish) != world_size:
        text = f"names {len(wish)} shares, the gang has {world_size} ranks"
        raise SpecInvalid([Problem("batch_shares", text)], "give one share for each rank, or auto")
    return FixedShares(parts_of(wish))
