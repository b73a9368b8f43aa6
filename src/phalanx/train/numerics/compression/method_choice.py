"""The choice of a compression method: a fixed one, or the fastest measured in the first steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

# A round is one step of each candidate; the first one warms up. Candidates are compared after LEAST rounds,
# and one is chosen after MOST of them: after MOST_OF_SHORT where all steps take less than SHORT_S seconds.
LEAST, MOST, MOST_OF_SHORT = 3, 12, 40
SHORT_S = 10.0
# (rounds, factor): after so many rounds a candidate slower than the fastest by this factor is dropped.
_SURE = ((0, 1.5), (6, 1.2), (20, 1.1))
# A less faithful method has to save at least this share of a step.
WORTH = 0.02

Tell = Callable[[str, Mapping[str, float]], None]


class MethodSchedule:
    """A schedule of compression methods; this one has a fixed method. All ranks make the same calls."""

    def __init__(self, method: str) -> None:
        self.racing: Sequence[str] = (method,)
        """The methods that may still be used."""

    @property
    def method(self) -> str:
        """Return the method of the current step."""
        return self.racing[0]

    def settle(self) -> None:
        """End a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the decision, if there is one."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the decision."""


class FastestMethod(MethodSchedule):
    """A schedule that measures candidates in turn, drops slower ones, and ends with the fastest.

    Whole steps are compared, because a method costs computing as well as communication, and because
    communication that overlaps the backward pass costs nothing. The decision is saved with the run, so a
    resumed run continues as the uninterrupted one would have.
    """

    def __init__(
        self, candidates: Sequence[str], tell: Tell, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`tell` gets the chosen method and the median seconds of a step with each candidate."""
        self.racing = tuple(candidates)
        self.medians: dict[str, float] = {}
        self._tell, self._clock = tell, clock
        self._took: dict[str, list[float]] = {name: [] for name in candidates}
        self._round = self._turn = 0
        self._last: float | None = None

    @property
    def choice(self) -> str | None:
        """Return the decision, or None before it."""
        return self.racing[0] if len(self.racing) == 1 else None

    @property
    def method(self) -> str:
        """Return the chosen method, or the next candidate to measure."""
        return self.racing[self._turn]

    def settle(self) -> None:
        """Record the step's time; after each round compare the candidates. Collective then."""
        if self.choice is not None:
            return
        now = self._clock()
        if self._last is not None and self._round > 0:
            self._took[self.method].append(now - self._last)
        self._last = now
        self._turn += 1
        if self._turn == len(self.racing):
            self._turn = 0
            if self._round >= LEAST:
                self._compare()
                self._last = self._clock()
            self._round += 1

    def _compare(self) -> None:
        mine = [statistics.median(self._took[name]) for name in self.racing]
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        now = dict(zip(self.racing, slowest.tolist(), strict=True))
        self.medians |= now
        self.racing = remaining_candidates(now, self._round)
        if self.choice is not None:
            self._tell(self.choice, self.medians)

    def state_dict(self) -> dict[str, Any]:
        """Return the decision, if there is one."""
        return {"choice": self.choice, "medians": self.medians}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the decision, if it is still a candidate."""
        if state.get("choice") in self.racing:
            self.racing, self._turn = (state["choice"],), 0
            self.medians = dict(state["medians"])


def remaining_candidates(medians: Mapping[str, float], rounds: int) -> tuple[str, ...]:
    """Return the candidates that may still be the fastest; one, once it is time to decide."""
    took_s = rounds * sum(medians.values())
    if rounds >= (MOST_OF_SHORT if took_s < SHORT_S else MOST):
        return (choose(medians),)
    factor = next(one for known, one in reversed(_SURE) if rounds >= known)
    most = min(medians.values()) * factor
    return tuple(name for name, took in medians.items() if took <= most)


def choose(medians: Mapping[str, float]) -> str:
    """Return the first candidate, in order of accuracy, that is not clearly slower than the fastest."""
    fastest = min(medians.values())
    return next(name for name, took in medians.items() if took * (1 - WORTH) <= fastest)
