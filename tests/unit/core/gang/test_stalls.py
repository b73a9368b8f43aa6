"""When a gang hangs, and where its ranks are."""

import pytest

from phalanx.core.gang.stacks import MAX_CHARS, elsewhere, main_thread, place, shortened
from phalanx.core.gang.stalls import FIRST_STEP_S, LEAST_S, OUTSIDE_S, StallLimit, StallWatch

pytestmark = pytest.mark.unit
S = 1_000_000


def looked(watch, since_s, until_s, every_s=0.5):
    """The first complaint while nothing happens, and when it came."""
    now_s = since_s
    while now_s <= until_s:
        quiet_s = watch.look(now_s)
        if quiet_s is not None:
            return quiet_s, now_s
        now_s += every_s
    return None


def stepping(watch, count, every_s):
    for at in range(count):
        watch.stepped(round(at * every_s * S))


def test_the_limit_is_learned_from_the_steps_and_never_below_a_floor():
    watch = StallWatch(StallLimit(), 0.0)
    watch.began()
    assert watch.limit_s == OUTSIDE_S
    stepping(watch, 10, 0.1)
    assert watch.limit_s == LEAST_S
    stepping(watch, 100, 60.0)
    assert watch.limit_s == 1200.0
    quiet_s, at_s = looked(watch, 0.0, 5000.0)
    assert quiet_s == pytest.approx(1200.0, abs=1.0) and at_s == pytest.approx(1200.0, abs=1.0)


def test_evaluating_and_saving_have_more_time_than_steps():
    watch = StallWatch(StallLimit(), 0.0)
    stepping(watch, 10, 0.1)
    watch.turned()
    assert watch.limit_s == OUTSIDE_S
    watch.stepped(100 * S)
    assert watch.limit_s == LEAST_S  # the time in between is no step


def test_a_fixed_limit_leaves_the_first_step_its_time():
    watch = StallWatch(StallLimit(5.0), 0.0)
    watch.began()
    assert watch.limit_s == FIRST_STEP_S
    watch.stepped(0)
    quiet_s, _ = looked(watch, 0.0, 100.0)
    assert 5.0 <= quiet_s < 6.0
    assert not watch.is_on and looked(watch, 6.0, 100.0) is None  # it is said once
    watch.stepped(0)
    assert watch.is_on


def test_who_does_not_use_the_library_or_is_done_is_left_alone():
    watch = StallWatch(StallLimit(5.0), 0.0)
    assert looked(watch, 0.0, 10_000.0) is None
    watch.stepped(0)
    watch.ended()
    watch.began()
    assert looked(watch, 0.0, 10_000.0) is None


def test_time_in_which_nobody_looked_is_not_held_against_the_ranks():
    """The machine slept, or the supervisor itself did not run."""
    watch = StallWatch(StallLimit(5.0), 0.0)
    watch.stepped(0)
    assert watch.look(10_000.0) is None
    assert looked(watch, 10_000.0, 10_100.0) is not None


WAITS = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 10 in run
  File "/home/me/other.py", line 3 in helper

Current thread 0x00007f0000000002 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 800 in _engine_run
  File "/home/me/train.py", line 40 in main
  File "/home/me/train.py", line 60 in <module>
"""
HANGS = WAITS.replace('/home/me/train.py", line 40 in main', '/home/me/train.py", line 33 in load')


def test_the_place_of_a_rank_is_the_innermost_line_of_its_own_script():
    assert [frame.name for frame in main_thread(WAITS)] == ["_engine_run", "main", "<module>"]
    assert str(place(WAITS)) == "train.py:40 in main"
    only = 'Current thread 0x1 (most recent call first):\n  File "/x/site-packages/a.py", line 1 in f\n'
    assert str(place(only)) == "a.py:1 in f"
    assert place("") is None and place("what?\n") is None


def test_the_rank_that_the_others_wait_for_is_found_where_one_can_tell():
    assert elsewhere({0: WAITS, 1: HANGS, 2: WAITS}) == (1,)
    assert elsewhere({0: WAITS, 1: "", 2: WAITS}) == (1,)
    assert elsewhere({0: WAITS, 1: WAITS}) == ()
    assert elsewhere({0: WAITS, 1: HANGS}) == () == elsewhere({})


def test_of_endless_stacks_the_end_is_kept():
    kept = shortened("x\n" * MAX_CHARS + WAITS)
    assert len(kept) <= MAX_CHARS + 2 and str(place(kept)) == "train.py:40 in main"
