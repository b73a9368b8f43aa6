"""When Python's collector of reference cycles may run: not in the middle of a plan."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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


def spare_what_is_there() -> None:
    """Collect once, and never look again at what is left: modules and tables live to the end."""
    gc.collect()
    gc.freeze()
