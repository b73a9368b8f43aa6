"""Early stopping when a metric no longer improves; the counter is saved in checkpoints.

early = run.early_stopping(patience=3, mode="min")
for epoch in run.epochs(100):
    ...
    if early.update(run.all_reduce_mean(val_loss, weight=n)):
        break
run.finish()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.errors import Problem, SpecInvalid


class EarlyStopping:
    """Counts updates without an improvement by more than `min_delta`; NaN is no improvement."""

    def __init__(
        self, patience: int, mode: str, min_delta: float, agreed: Callable[[float], float]
    ) -> None:
        """`agreed` returns rank 0's value on every rank, so that all ranks stop together.

        Raises SpecInvalid.
        """
        problems = []
        if mode not in ("min", "max"):
            problems.append(Problem("mode", "must be min or max", mode))
        if patience < 1:
            problems.append(Problem("patience", "must be at least 1", str(patience)))
        if problems:
            raise SpecInvalid(problems, "these are arguments of run.early_stopping")
        self.best = math.inf if mode == "min" else -math.inf
        self.waited = 0
        self._patience, self._min_delta, self._agreed = patience, min_delta, agreed
        self._sign = 1.0 if mode == "min" else -1.0

    def update(self, value: float) -> bool:
        """Add the newest value; returns whether to stop, the same on every rank. Collective."""
        value = self._agreed(float(value))
        if self._sign * value < self._sign * self.best - self._min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.best, self.waited = float(state["best"]), int(state["waited"])
