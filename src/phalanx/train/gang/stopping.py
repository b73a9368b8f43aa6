"""The request to stop a rank: SIGTERM as a flag."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from types import FrameType

from phalanx.kit.clock import Clock

_LOOK_S = 0.1


class StopSignal:
    """A flag that SIGTERM sets; the handler does nothing else.

    A forked data worker inherits the handler; there the signal kills, as it should.
    """

    def __init__(self, clock: Clock) -> None:
        self.at: float | None = None
        self._clock = clock
        self._pid = os.getpid()

    def install(self) -> None:
        """Install the SIGTERM handler; does nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._arrived)

    def remove(self) -> None:
        """Restore the default action of SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def left_s(self, grace_s: float) -> float:
        """Return the seconds left of the grace period; infinite while no request has come."""
        return math.inf if self.at is None else grace_s - (self._clock.monotonic() - self.at)

    def pause(self, seconds: float) -> bool:
        """Wait, but no longer once a stop was requested; returns whether one was."""
        until = self._clock.monotonic() + seconds
        while self.at is None and (left_s := until - self._clock.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left_s))  # a handler that returns does not end it
        return self.at is not None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.at is None:
            self.at = self._clock.monotonic()
