"""A request to stop, as a rank notices it."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from phalanx.kit.clock import Clock


class StopSignal:
    """SIGTERM as a flag: the handler does nothing else.

    A forked data worker inherits the handler; there the signal kills, as it should.
    """

    def __init__(self, clock: Clock) -> None:
        self.at: float | None = None
        self._clock = clock
        self._pid = os.getpid()

    def install(self) -> None:
        """Take SIGTERM over; only possible in the main thread, elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._arrived)

    def remove(self) -> None:
        """Give SIGTERM its usual meaning back."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.at is None:
            self.at = self._clock.monotonic()
