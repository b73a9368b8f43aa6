"""When a gang that makes no step counts as stalled: how long to wait, learned from its own steps."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

USUAL_STEPS = 20.0
"""A step that takes this many times the usual one is no step any more."""
LEAST_S = 300.0
"""But never sooner than this: below the ten minutes after which gloo gives up by itself."""
OUTSIDE_S = 1800.0
"""Before the first step, while saving and between passes: compiling and evaluating take their time."""
FIRST_STEP_S = 600.0
"""The least a fixed limit leaves to the first step of a generation."""
_WINDOW = 64
# Longer than this between two looks, nobody watched: the machine slept, or this process did not run.
_BLINK_S = 1.0


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
        """The script uses the library, so that steps are to be expected. Only the first time counts."""
        if not self._began:
            self._began = self._watching = True
            self._quiet_s = 0.0

    def stepped(self, at: int) -> None:
        """A step was completed at `at`."""
        self._began = self._watching = True
        if self._inside and self._stepped_at is not None:
            self._gaps.append(max(0.0, (at - self._stepped_at) / 1e6))
        self._stepped_at, self._inside, self._quiet_s = at, True, 0.0

    def turned(self) -> None:
        """The script does something else than steps: it saves, evaluates, or is between passes."""
        self._inside, self._quiet_s = False, 0.0

    def ended(self) -> None:
        """No more steps are to be expected."""
        self._began, self._watching = True, False

    def look(self, now_s: float) -> float | None:
        """Called regularly: the seconds without a step, once they are too many; then None again."""
        self._quiet_s += min(now_s - self._looked_s, _BLINK_S)
        self._looked_s = now_s
        if not self._watching or self._quiet_s < self.limit_s:
            return None
        self._watching = False
        return self._quiet_s

    @property
    def is_on(self) -> bool:
        """Whether steps are being waited for; not after `look` has said that they do not come."""
        return self._watching

    @property
    def limit_s(self) -> float:
        """How long no step is waited for just now."""
        after_s = self._patience.after_s
        if after_s is not None:
            return after_s if self._stepped_at is not None else max(after_s, FIRST_STEP_S)
        usual_s = statistics.median(self._gaps) if self._gaps else 0.0
        return max(LEAST_S if self._inside else OUTSIDE_S, USUAL_STEPS * usual_s)
