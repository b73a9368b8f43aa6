"""The stored reading of the control plane's clock, from which its next process goes on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from phalanx.store.database import Tx
from phalanx.store.tables import counters

_PREFIX = "clock_"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Readings of all clocks at one moment; `boot` identifies the boot of the machine."""

    now: int  # the platform's time, microseconds UTC
    wall: int  # the wall clock, microseconds UTC
    monotonic: int  # the machine's monotonic clock, microseconds
    boot: int  # of which the monotonic clock counts


_NAMES = ("now", "wall", "monotonic", "boot")


def load(tx: Tx) -> ClockReading | None:
    """Read the last reading; None in a new database."""
    names = [_PREFIX + name for name in _NAMES]
    query = select(counters.c.name, counters.c.value).where(counters.c.name.in_(names))
    found = {name: value for name, value in tx.conn.execute(query)}
    if len(found) < len(names):
        return None
    return ClockReading(*(found[name] for name in names))


def save(tx: Tx, reading: ClockReading) -> None:
    """Store a reading in the place of the last one."""
    for name in _NAMES:
        named = counters.c.name == _PREFIX + name
        value = getattr(reading, name)
        if tx.conn.execute(counters.update().where(named).values(value=value)).rowcount == 0:
            tx.conn.execute(counters.insert(), {"name": _PREFIX + name, "value": value})
