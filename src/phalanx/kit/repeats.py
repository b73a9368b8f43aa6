"""A limit on lines of a log that repeat, so that an error that recurs does not fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_MOST_KINDS = 1000


class RepeatFilter(logging.Filter):
    """Passes `burst` records of one kind in each period; the next one that passes counts the others.

    Records are of one kind when their logger, level and unformatted message are the same.
    """

    def __init__(
        self,
        burst: int = 10,
        period_s: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._burst, self._period_s, self._monotonic = burst, period_s, monotonic
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is to be written."""
        now = self._monotonic()
        key = (record.name, record.levelno, str(record.msg)[:200])
        since, count = self._seen.get(key, (now, 0))
        if now - since >= self._period_s:
            left_out = count - self._burst
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} more such lines were left out)"
                record.args = ()
            since, count = now, 0
        if key not in self._seen and len(self._seen) >= _MOST_KINDS:
            self._seen.clear()
        self._seen[key] = (since, count + 1)
        return count < self._burst
