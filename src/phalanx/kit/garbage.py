"""Settings of Python's cyclic garbage collector for long-lived processes and short critical sections."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

_NEW_OBJECTS = 50_000
_SWITCH_S = 0.0005


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection inside the block; a collection that is due runs right after it.

    A collection visits every object of the process, which takes several times as long as a planning pass.
    The switch is shared by all threads, so the block must be short and must not block.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def tune_for_long_lived_process() -> None:
    """Tune the collector and the thread switch interval for a server that runs for days.

    Objects that exist now (modules, tables, routes) are exempt from later collections. A collection starts
    after fifty thousand new objects instead of seven hundred, because nearly all of them (rows and events)
    are freed by reference counting.
    """
    # No collection first: it would take as long as the rest of the server's start.
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)
    # A thread that has waited for the disk must not wait five more milliseconds for the planner's thread.
    sys.setswitchinterval(_SWITCH_S)
