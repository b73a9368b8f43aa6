"""The supervisor's main thread: descriptors, timers, and calls from other threads, one at a time."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import selectors
from collections.abc import Callable

from phalanx.kit.clock import Clock, SteadyClock

Call = Callable[[], object]


class Timer:
    """One call that will be made at a certain time, unless it is cancelled before."""

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        """Cancel the call; has no effect after the call was made."""
        self.call = None


class EventLoop:
    """Calls for readable descriptors and due timers. Other threads may use only `call_from_outside`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._running = False
        self.watch(self._wake_read, self._run_calls)

    @property
    def wake_descriptor(self) -> int:
        """For `signal.set_wakeup_fd`: a byte written here makes the loop turn."""
        return self._wake_write

    def steady(self, wall: int) -> int:
        """A recent time of the wall clock, microseconds UTC, on the clock of this process."""
        clock = self._clock
        return wall + round(clock.ahead_s * 1e6) if isinstance(clock, SteadyClock) else wall

    def watch(self, descriptor: int, call: Call) -> None:
        """Call whenever the descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def forget(self, descriptor: int) -> None:
        """Stop watching, before the descriptor is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)

    def call_later(self, seconds: float, call: Call) -> Timer:
        """Call once after so many seconds."""
        timer = Timer(call)
        at = self._clock.monotonic() + seconds
        heapq.heappush(self._timers, (at, next(self._numbers), timer))
        return timer

    def call_from_outside(self, call: Call) -> None:
        """Have the main thread call; from any thread and from signal handlers."""
        self._calls.put(call)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def run(self) -> None:
        """Wait for descriptors and timers, and call, until `stop`."""
        self._running = True
        while self._running:
            timeout = self._next_timeout()
            for key, _ in self._selector.select(timeout):
                # An earlier call of this turn may have stopped to watch it.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._run_timers()

    def stop(self) -> None:
        """Leave `run` after this turn."""
        self._running = False

    def _next_timeout(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self._clock.monotonic())

    def _run_timers(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            call, timer.call = timer.call, None
            if call is not None:
                call()

    def _run_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 65536)
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            call()
