"""Stall detection: how long a gang may make no step, learned from its own steps."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.stacks import elsewhere, place, waits_for_others

USUAL_STEPS = 20.0
"""A step that takes this many times the usual duration counts as stalled."""
LEAST_S = 300.0
"""Least limit between steps, in seconds: below the ten-minute timeout of gloo."""
OUTSIDE_S = 1800.0
"""Limit before the first step, while saving and between passes, for compilation and evaluation."""
FIRST_STEP_S = 600.0
"""The least a fixed limit leaves to the first step of a generation."""
_WINDOW = 64
# A longer gap between two checks is not counted: the machine slept, or this process did not run.
_BLINK_S = 1.0
# A gap between two steps may be longer by this than the time that was seen to pass.
_UNSEEN_S = 60.0


@dataclass(frozen=True, slots=True)
class StallLimit:
    """How long a gang may make no step; `after_s` None learns it from the steps."""

    after_s: float | None = None


class StallWatch:
    """Watches one generation on one node. Times are seconds of a monotonic clock, `at` microseconds."""

    def __init__(self, patience: StallLimit, now_s: float) -> None:
        self._patience = patience
        self._gaps: deque[float] = deque(maxlen=_WINDOW)
        self._looked_s = now_s
        self._quiet_s = 0.0
        self._stepped_at: int | None = None
        self._inside = False
        self._watching = self._began = False

    def began(self) -> None:
        """Expect steps from now on, because the script uses the library; later calls do nothing."""
        if not self._began:
            self._began = self._watching = True
            self._quiet_s = 0.0

    def stepped(self, at: int) -> None:
        """A step was completed at `at`."""
        self._began = self._watching = True
        if self._inside and self._stepped_at is not None:
            # A wall clock that was set between two steps says nothing about their duration.
            most_s = self._quiet_s + _UNSEEN_S
            self._gaps.append(min(most_s, max(0.0, (at - self._stepped_at) / 1e6)))
        self._stepped_at, self._inside, self._quiet_s = at, True, 0.0

    def turned(self) -> None:
        """Record that the script is between steps: it saves, evaluates or begins a pass."""
        self._inside, self._quiet_s = False, 0.0

    def ended(self) -> None:
        """Stop expecting steps."""
        self._began, self._watching = True, False

    def look(self, now_s: float) -> float | None:
        """The seconds without a step once they exceed the limit, else None; called regularly."""
        self._quiet_s += min(now_s - self._looked_s, _BLINK_S)
        self._looked_s = now_s
        if not self._watching or self._quiet_s < self.limit_s:
            return None
        self._watching = False
        return self._quiet_s

    @property
    def is_on(self) -> bool:
        """Whether steps are expected; False once `look` has reported a stall."""
        return self._watching

    @property
    def limit_s(self) -> float:
        """The current limit without a step, in seconds."""
        after_s = self._patience.after_s
        if after_s is not None:
            return after_s if self._stepped_at is not None else max(after_s, FIRST_STEP_S)
        usual_s = statistics.median(self._gaps) if self._gaps else 0.0
        return max(LEAST_S if self._inside else OUTSIDE_S, USUAL_STEPS * usual_s)


@dataclass(frozen=True, slots=True)
class CapturedStack:
    """The stacks of one rank of a stalled gang; `why` says why `text` is empty."""

    node_rank: int
    text: str
    why: str = ""


def with_culprit(failure: Failure, stacks: Mapping[int, CapturedStack]) -> Failure:
    """The failure of a stalled gang, of the rank that the others wait for.

    `stacks` are those of all ranks that are known, by rank. A node that compares only its own ranks names
    the victim where the culprit is on another node. No rank is named where the stacks tell nothing.
    """
    odd = elsewhere({rank: one.text for rank, one in stacks.items()})
    said = f"{failure.message.partition('; ')[0]}; {_differences(stacks, odd)}"
    if not odd:
        return replace(failure, rank=None, message=said, traceback="")
    culprit = stacks[odd[0]]
    return replace(
        failure,
        rank=odd[0],
        node_rank=culprit.node_rank,
        message=said,
        traceback=culprit.text,
    )


def _differences(stacks: Mapping[int, CapturedStack], odd: tuple[int, ...]) -> str:
    """Which ranks are elsewhere than most, and where; else where the first one is."""
    where = {rank: str(place(one.text) or one.why) for rank, one in stacks.items()}
    if odd:
        return "; ".join(
            f"rank {rank} differs from the other ranks: {where[rank]}" for rank in odd[:4]
        )
    rank = next(iter(stacks), None)
    if rank is None:
        return ""
    if waits_for_others(stacks[rank].text):
        return f"rank {rank} waits for other ranks: {where[rank]}"
    return f"rank {rank}: {where[rank]}"
