"""The time that ranks have to save and exit after a stop request."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable

from phalanx.kit.clock import Clock
from phalanx.supervise.eventloop import EventLoop, Timer


class GracePeriod:
    """Watches processes that received SIGTERM, and ends their time.

    `left` is called whenever one of them has ended, `over` when the time is up.
    """

    def __init__(
        self, loop: EventLoop, clock: Clock, left: Callable[[], None], over: Callable[[], None]
    ) -> None:
        self._loop, self._clock = loop, clock
        self._on_left, self._on_over = left, over
        self._timer: Timer | None = None
        self._ends_at = math.inf
        self._handles: set[int] = set()

    def begin(self, seconds: float) -> None:
        """Begin to count; a repeated call may shorten the time, never extend it."""
        ends_at = self._clock.monotonic() + seconds
        if ends_at < self._ends_at:
            self._ends_at = ends_at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(seconds, self._on_over)

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite before `begin`."""
        return max(0.0, self._ends_at - self._clock.monotonic())

    @property
    def waiting(self) -> bool:
        """Whether a process that received the signal still runs."""
        return bool(self._handles)

    def follow(self, handles: Iterable[int]) -> None:
        """Wait for the end of these processes, given as descriptors of `os.pidfd_open`."""
        for handle in handles:
            self._handles.add(handle)
            self._loop.watch(handle, lambda handle=handle: self._ended(handle))  # type: ignore[misc]

    def _ended(self, handle: int) -> None:
        self._forget(handle)
        self._on_left()

    def _forget(self, handle: int) -> None:
        self._handles.discard(handle)
        self._loop.forget(handle)
        os.close(handle)

    def close(self) -> None:
        """Wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        for handle in list(self._handles):
            self._forget(handle)
