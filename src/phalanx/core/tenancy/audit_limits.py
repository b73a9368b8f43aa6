"""How often the same thing is written to the audit log: rows of reads and denied requests are bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_MINUTE_US = 60 * 1_000_000
_HOUR_US = 60 * _MINUTE_US
READS_EVERY_US = _MINUTE_US
"""A caller that reads the same thing again within this time, such as a log, gets no further row."""
DENIED_PER_CALLER = 60
"""Rows of denied requests of one caller in an hour."""
DENIED_IN_ALL = 5000
"""Rows of denied requests of all callers in an hour: addresses cost nothing."""
_KEPT = 10_000


@dataclass(slots=True)
class AuditLimits:
    """What this process has written lately."""

    _reads: OrderedDict[tuple[str, ...], int] = field(default_factory=OrderedDict)
    _denied: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _hour: int = -1
    _num_denied: int = 0

    def permits_read(self, key: tuple[str, ...], now: int) -> bool:
        """Whether a read gets a row; `now` in microseconds."""
        last = self._reads.get(key)
        if last is not None and 0 <= now - last < READS_EVERY_US:
            return False
        self._reads[key] = now
        self._reads.move_to_end(key)
        while len(self._reads) > _KEPT:
            self._reads.popitem(last=False)
        return True

    def permits_denied(self, caller: str, now: int) -> bool:
        """Whether a denied request gets a row; `now` in microseconds."""
        hour = now // _HOUR_US
        if hour != self._hour:
            self._hour, self._num_denied = hour, 0
            self._denied.clear()
        count = self._denied.get(caller, 0)
        if count >= DENIED_PER_CALLER or self._num_denied >= DENIED_IN_ALL:
            return False
        self._denied[caller] = count + 1
        self._num_denied += 1
        return True
