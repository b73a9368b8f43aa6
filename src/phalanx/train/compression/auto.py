"""Which method when: one for the whole run, or the fastest of several as the first steps show it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

# A step of each candidate warms up, then each has this many that count.
ROUNDS = 5
# A less faithful method has to save at least this share of a step.
WORTH = 0.03


class Schedule(Protocol):
    """Says how gradients travel. All ranks make the same calls."""

    def method(self, step: int) -> str:
        """The method of the step that comes after `step` steps."""
        ...

    def settle(self, step: int) -> None:
        """`step` steps are done."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What was decided."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        ...


class Fixed:
    """Always the same."""

    def __init__(self, method: str) -> None:
        self._method = method

    def method(self, step: int) -> str:
        """The one."""
        return self._method

    def settle(self, step: int) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


class Auto:
    """Takes candidates in turn, step by step, and stays with one when each has been measured.

    Whole steps are compared, because a method costs computing as well as waiting, and because what a
    backward pass hides costs nothing. The decision is saved with the run: a resumed run goes on as the
    uninterrupted one would have.
    """

    def __init__(
        self, candidates: Sequence[str], tell: Callable[[str, Mapping[str, float]], None]
    ) -> None:
        self.choice: str | None = candidates[0] if len(candidates) == 1 else None
        self.medians: dict[str, float] = {}
        self._tell, self._candidates = tell, tuple(candidates)
        self._took: dict[str, list[float]] = {name: [] for name in candidates}
        self._last: float | None = None

    def method(self, step: int) -> str:
        """The choice, or the candidate whose turn it is."""
        return self.choice or self._candidates[step % len(self._candidates)]

    def settle(self, step: int) -> None:
        """A step is done: count its time; after the last round, choose. Collective then."""
        if self.choice is not None:
            return
        now = time.perf_counter()
        if self._last is not None and step > len(self._candidates):
            self._took[self.method(step - 1)].append(now - self._last)
        self._last = now
        if step >= len(self._candidates) * (ROUNDS + 1):
            self._choose()

    def _choose(self) -> None:
        mine = [statistics.median(self._took[name] or [0.0]) for name in self._candidates]
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        self.medians = dict(zip(self._candidates, slowest.tolist(), strict=True))
        self.choice = choose(self.medians)
        self._tell(self.choice, self.medians)

    def state_dict(self) -> dict[str, Any]:
        """What was decided, if anything."""
        return {"choice": self.choice, "medians": self.medians}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back, if it is still a candidate."""
        if state.get("choice") in self._candidates:
            self.choice, self.medians = state["choice"], dict(state["medians"])


def choose(medians: Mapping[str, float]) -> str:
    """The first candidate that is not clearly slower than the fastest; they come most faithful first."""
    fastest = min(medians.values())
    return next(name for name, took in medians.items() if took * (1 - WORTH) <= fastest)
