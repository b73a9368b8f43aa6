"""When Python's collector of reference cycles may run (not in the middle of a plan), and its threads."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

_NEW_OBJECTS = 50_000
_SWITCH_S = 0.0005


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """No collection starts before the end of the block; what is due then happens right after it.

    A collection looks at every object of the process, which takes several times as long as a plan. The
    switch is one for all threads, so a block must be short and must not wait for anything.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def for_a_long_life() -> None:
    """Settings for a process that serves for days and holds many thousand values at a time.

    What is there by now (modules, tables, routes) is never looked at again, and a collection begins
    after fifty thousand new objects instead of seven hundred: nearly all of them, rows and events, go
    without it, as soon as nobody names them.
    """
    # Not collected first: that would take as long as the rest of a server's start.
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)
    # Who has waited for the disk must not then wait five milliseconds for a thread that plans.
    sys.setswitchinterval(_SWITCH_S)
