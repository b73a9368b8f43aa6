"""Which object to look at next: each one at most once at a time, and later after errors."""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0


def back_off_s(errors: int, chance: float) -> float:
    """Seconds to wait after so many errors in a row; `chance` from 0 to 1 spreads the waits."""
    longest: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(errors - 1, 20))
    return longest * (0.5 + 0.5 * chance)


class WorkQueue(Generic[K]):
    """Keys that are due. A key that changes while it is worked on is due again after that.

    `take` and `done` belong together; time is that of `clock`, in seconds.
    """

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock, self._rng = clock, rng
        self._lock = threading.Condition()
        self._due: dict[K, None] = {}  # in order
        self._busy: set[K] = set()
        self._again: set[K] = set()  # busy, and due again
        self._later: list[tuple[float, int, K]] = []  # heap
        self._at: dict[K, float] = {}  # the earliest time of each key in it
        self._errors: dict[K, int] = {}
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        """Keys that are due now."""
        with self._lock:
            self._move()
            return len(self._due)

    def add(self, key: K) -> None:
        """Make a key due now, unless it waits after an error."""
        with self._lock:
            if key in self._errors and key in self._at:
                return
            self._add(key)

    def add_after(self, key: K, wait_s: float) -> None:
        """Make a key due after this time, or earlier where that was said before."""
        with self._lock:
            at = self._clock() + wait_s
            if self._at.get(key, at) >= at:
                self._at[key] = at
                self._count += 1
                heapq.heappush(self._later, (at, self._count, key))
                self._lock.notify()

    def take(self, timeout_s: float) -> K | None:
        """The next key that is due; it is not given out again before `done`. None after this time."""
        with self._lock:
            until = self._clock() + timeout_s
            while not self._closed:
                self._move()
                if self._due:
                    key = next(iter(self._due))
                    del self._due[key]
                    self._busy.add(key)
                    return key
                wait_s = min([until, *self._at.values()], default=until) - self._clock()
                if until - self._clock() <= 0:
                    return None
                self._lock.wait(max(0.0, wait_s))
            return None

    def done(self, key: K, again_s: float | None = None) -> None:
        """The work on a key has succeeded; `again_s`: it is due again after this time."""
        with self._lock:
            self._errors.pop(key, None)
            self._release(key)
            if again_s is not None:
                self.add_after(key, again_s)

    def failed(self, key: K) -> float:
        """The work on a key has failed; returns after how many seconds it is due again."""
        with self._lock:
            errors = self._errors[key] = self._errors.get(key, 0) + 1
            wait_s = back_off_s(errors, self._rng.random())
            self._again.discard(key)
            self._busy.discard(key)
            self.add_after(key, wait_s)
            return wait_s

    def close(self) -> None:
        """Wake everything that waits; nothing is due any more."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _release(self, key: K) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._add(key)

    def _add(self, key: K) -> None:
        if key in self._busy:
            self._again.add(key)
        elif key not in self._due:
            self._due[key] = None
            self._lock.notify()

    def _move(self) -> None:
        """Make due what has waited long enough."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            at, _, key = heapq.heappop(self._later)
            if self._at.get(key) == at:
                del self._at[key]
                self._add(key)
