"""The queue of objects: one look at a time, none lost, later after errors."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.operator.work_queue import LONGEST_WAIT_S, WorkQueue, back_off_s

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue() -> tuple[WorkQueue[str], Clock]:
    clock = Clock()
    return WorkQueue(clock, random.Random(1)), clock


def test_a_change_during_a_look_makes_another_look_due_after_it() -> None:
    due, _ = queue()
    due.add("a")
    due.add("a")
    assert due.take(0) == "a"
    due.add("a")
    assert due.take(0) is None  # not side by side
    due.done("a")
    assert due.take(0) == "a"
    due.done("a")
    assert due.take(0) is None


def test_errors_wait_longer_and_changes_do_not_shorten_the_wait() -> None:
    due, clock = queue()
    due.add("a")
    waits = []
    for _ in range(12):
        assert due.take(0) == "a"
        waits.append(due.failed("a"))
        due.add("a")
        assert due.take(0) is None
        clock.now += waits[-1]
    assert waits[0] <= 1.0 < waits[4]
    assert all(one <= LONGEST_WAIT_S for one in waits)
    assert due.take(0) == "a"
    due.done("a")
    due.add("a")
    assert due.take(0) == "a"  # after a success, changes count at once


def test_the_earliest_of_several_later_looks_counts() -> None:
    due, clock = queue()
    due.add_after("a", 50)
    due.add_after("a", 10)
    due.add_after("a", 30)
    clock.now = 10
    assert due.take(0) == "a"
    due.done("a", 5)
    clock.now = 15
    assert due.take(0) == "a"


@given(st.integers(1, 2000), st.floats(0, 1))
def test_waits_have_limits(errors: int, chance: float) -> None:
    assert 0.5 <= back_off_s(errors, chance) <= LONGEST_WAIT_S


steps = st.tuples(
    st.sampled_from(["add", "later", "take", "done", "failed", "time"]), st.sampled_from("ab")
)


@given(st.lists(steps, max_size=60))
def test_no_key_is_lost_and_none_is_given_out_twice(life: list[tuple[str, str]]) -> None:
    due, clock = queue()
    busy: set[str] = set()
    wanted: set[str] = set()
    for what, key in life:
        if what == "add":
            due.add(key)
            wanted.add(key)
        elif what == "later":
            due.add_after(key, 3)
            wanted.add(key)
        elif what == "take":
            found = due.take(0)
            if found is not None:
                assert found not in busy
                busy.add(found)
                wanted.discard(found)
        elif what == "time":
            clock.now += 2
        elif key in busy:
            busy.discard(key)
            if what == "done":
                due.done(key)
            else:
                due.failed(key)
                wanted.add(key)
    for key in busy:
        due.done(key)
    clock.now += 2 * LONGEST_WAIT_S
    found = set()
    while (one := due.take(0)) is not None:
        found.add(one)
    assert wanted <= found
