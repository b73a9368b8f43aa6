"""No collection of reference cycles begins in the middle of a plan."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest

from phalanx.kit import garbage

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def usual_thresholds() -> Iterator[None]:
    """Whatever ran before in this process, and for whatever runs after."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def collections_in(guard: contextlib.AbstractContextManager[None]) -> int:
    """How many collections begin while ten thousand cycles are made within `guard`."""
    begun: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(phase)

    with guard:
        gc.callbacks.append(note)
        try:
            for _ in range(10_000):
                cycle: list[object] = []
                cycle.append(cycle)
        finally:
            gc.callbacks.remove(note)
    return len(begun)


def test_nothing_is_collected_within_and_all_goes_on_after() -> None:
    assert gc.isenabled()
    assert collections_in(garbage.collection_paused()) == 0
    assert gc.isenabled()


def test_without_it_collections_begin_at_once() -> None:
    assert collections_in(contextlib.nullcontext()) > 0


def test_who_had_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with garbage.collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_long_life_spares_what_is_there_and_collects_seldom() -> None:
    before = gc.get_freeze_count()
    try:
        garbage.tune_for_long_lived_process()
        assert gc.get_freeze_count() > before
        assert collections_in(contextlib.nullcontext()) == 0
    finally:
        gc.unfreeze()
