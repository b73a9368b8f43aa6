"""When a gang hangs, and where its ranks are."""

import pytest

from phalanx.core.gang.activities import Activity
from phalanx.core.gang.stacks import MAX_CHARS, elsewhere, main_thread, place, shortened
from phalanx.core.gang.stalls import (
    BUSY_S,
    FEW_STEPS_S,
    GRACE_S,
    KNOWN_STEPS,
    REPEATED_GRACE_S,
    SILENT_S,
    STOPPED_S,
    WORKED_S,
    PauseKind,
    RankUsage,
    StallPolicy,
    StallWatch,
)

pytestmark = pytest.mark.unit
TICK_S = 0.5
WAITS_AND_COMPUTES = {Activity.WAITING, Activity.OTHER}


class Clock:
    """A watch with the time that it is told."""

    def __init__(self, policy=None, **options):
        policy = policy or StallPolicy()
        self.watch, self.now_s = StallWatch(policy, 0.0, **options), 0.0

    def run(self, seconds):
        """Look until something is suspicious or the time is over."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            if (found := self.watch.look(self.now_s)) is not None:
                return found
        return None

    def steps(self, pauses):
        for number, pause_s in enumerate(pauses):
            assert self.run(pause_s) is None
            self.watch.stepped(number)

    def stalls(self, seen, most_s):
        """The seconds until a stall, with ranks that all the time do what is `seen`; None: none."""
        began_s = self.now_s
        while (found := self.run(most_s - (self.now_s - began_s))) is not None:
            if not self.watch.judge(found, seen):
                return self.now_s - began_s
        return None

    def use(self, seconds, active, num_ranks=3, stopped=()):
        for _ in range(round(seconds / 2)):
            assert self.run(2.0) is None
            self.watch.used(RankUsage(frozenset(active), frozenset(stopped), num_ranks))


def test_the_limit_is_the_longest_pause_so_far_and_a_grace():
    clock = Clock()
    clock.watch.began()
    assert clock.watch.limit_s == StallPolicy().start_s
    clock.steps([100.0, 1.0])
    assert clock.watch.limit_s == FEW_STEPS_S
    clock.steps([1.0] * KNOWN_STEPS)
    assert clock.watch.limit_s == pytest.approx(GRACE_S + 1.0, abs=2 * TICK_S)
    clock.steps(
        [30.0, 1.0]
    )  # a single step of thirty seconds is in the grace, and belongs to the pace
    assert clock.watch.limit_s == pytest.approx(GRACE_S + 30.0, abs=2 * TICK_S)
    assert clock.stalls(WAITS_AND_COMPUTES, 600.0) <= GRACE_S + 31.0


def test_a_generation_after_a_stall_has_more_time():
    clock = Clock(repeated=True)
    clock.steps([1.0] * 10)
    assert clock.watch.limit_s == pytest.approx(REPEATED_GRACE_S + 1.0, abs=2 * TICK_S)


@pytest.mark.parametrize(
    ("phase", "name"), [("evaluating", "validation_s"), ("saving", "save_s"), ("ready", "start_s")]
)
def test_phases_between_steps_have_limits_of_their_own(phase, name):
    clock = Clock(StallPolicy(**{name: 200.0}))
    clock.steps([1.0] * 10)
    clock.watch.entered(phase)
    assert clock.watch.limit_s == 200.0
    assert clock.run(199.0) is None
    clock.watch.stepped(99)
    assert clock.watch.limit_s == pytest.approx(GRACE_S + 1.0, abs=2 * TICK_S)


@pytest.mark.parametrize(
    ("activity", "name"),
    [
        (Activity.VALIDATING, "validation_s"),
        (Activity.SAVING, "save_s"),
        (Activity.COMPILING, "compile_s"),
    ],
)
def test_what_the_stacks_show_has_a_limit_of_its_own(activity, name):
    clock = Clock(StallPolicy(**{name: 600.0}), gang_size=3)
    clock.steps([1.0] * 10)
    assert clock.stalls({activity, Activity.WAITING}, 500.0) is None
    # It ends, and nothing else happens: the usual limit begins there.
    assert clock.stalls(WAITS_AND_COMPUTES, 200.0) <= GRACE_S + 35.0
    clock = Clock(StallPolicy(**{name: 600.0}), gang_size=3)
    clock.steps([1.0] * 10)
    assert 600.0 <= clock.stalls({activity}, 2000.0) <= 620.0


def test_a_pause_with_a_good_reason_is_none_of_the_pace():
    clock = Clock(gang_size=3)
    clock.steps([1.0] * 10)
    assert clock.stalls({Activity.COMPILING}, 500.0) is None
    clock.watch.stepped(10)
    assert clock.watch.limit_s == pytest.approx(GRACE_S + 1.0, abs=2 * TICK_S)


def test_ranks_that_all_compute_have_more_time_and_those_that_are_idle_have_not():
    clock = Clock(gang_size=3)
    clock.steps([1.0] * 10)
    clock.watch.used(RankUsage(frozenset({0, 1, 2}), num_ranks=3))
    assert BUSY_S <= clock.stalls({Activity.OTHER}, 1000.0) <= BUSY_S + 20.0
    clock = Clock(gang_size=3)
    clock.steps([1.0] * 10)
    clock.watch.used(RankUsage(num_ranks=3))
    assert clock.stalls({Activity.OTHER}, 1000.0) <= GRACE_S + 2.0
    alone = Clock()
    alone.steps([1.0] * 10)
    assert alone.stalls({Activity.OTHER}, 1000.0) >= BUSY_S


def test_ranks_that_cannot_say_where_they_are_are_left_alone_while_they_compute():
    clock = Clock(gang_size=2)
    clock.steps([1.0] * 10)
    clock.watch.used(RankUsage(frozenset({0, 1}), num_ranks=2))
    assert SILENT_S <= clock.stalls({Activity.UNKNOWN}, 3000.0) <= SILENT_S + 20.0


def test_a_rank_that_a_signal_has_stopped_is_no_matter_of_pace():
    clock = Clock(gang_size=3)
    clock.steps([40.0] * 5)
    clock.watch.used(RankUsage(frozenset({0, 1}), frozenset({2}), 3))
    found = clock.run(STOPPED_S + 1.0)
    assert found.kind is PauseKind.LIFE and "rank 2 has been stopped" in found.said
    assert not clock.watch.judge(found, {Activity.STOPPED, Activity.SAVING})


def test_a_fixed_limit_holds_between_steps_and_the_first_one_has_its_own():
    clock = Clock(StallPolicy(after_s=5.0, start_s=60.0))
    clock.watch.began()
    assert clock.run(59.0) is None
    clock.watch.stepped(0)
    assert 5.0 <= clock.stalls({Activity.OTHER}, 100.0) < 6.0
    assert clock.watch.is_on


def test_a_stall_that_nobody_ends_is_said_again_but_less_and_less_often():
    clock = Clock(StallPolicy(after_s=5.0))
    clock.steps([1.0] * 5)
    times = [clock.stalls({Activity.WAITING}, 1000.0) for _ in range(6)]
    assert 60.0 == times[1] <= times[2] <= times[3] < times[5]


def test_without_a_new_metric_for_so_long_where_the_spec_says_so():
    clock = Clock(StallPolicy(metrics_s=300.0))
    clock.watch.measured()
    for number in range(400):
        clock.watch.stepped(number)
        found = clock.run(1.0)
        if found is not None:
            break
    assert found.kind is PauseKind.METRICS and found.said.startswith("no metric for 5m")
    assert not clock.watch.judge(found, {Activity.OTHER})


def test_never_and_a_script_that_is_done_are_left_alone():
    clock = Clock(StallPolicy(watch=False))
    clock.steps([1.0] * 5)
    assert clock.run(10_000.0) is None
    clock = Clock(StallPolicy(after_s=5.0))
    clock.watch.stepped(0)
    clock.watch.ended()
    clock.watch.began()
    assert clock.run(10_000.0) is None


def test_time_in_which_nobody_looked_is_not_held_against_the_ranks():
    """The machine slept, or the supervisor itself did not run."""
    watch = StallWatch(StallPolicy(after_s=5.0), 0.0)
    watch.stepped(0)
    assert watch.look(10_000.0) is None


# -- gangs that report nothing ---------------------------------------------------------------------


def test_a_silent_gang_is_stalled_when_all_ranks_are_idle():
    clock = Clock(gang_size=3)
    clock.use(WORKED_S + 10, {0, 1, 2})
    clock.use(20, ())  # an earlier pause belongs to the pace
    clock.use(10, {0, 1, 2})
    clock.watch.used(RankUsage(num_ranks=3))
    took_s = clock.stalls({Activity.WAITING}, 600.0)
    assert 60.0 <= took_s <= GRACE_S + 25.0


def test_a_silent_gang_in_which_one_rank_computes_alone_is_stalled_only_if_the_others_wait():
    for seen, ends in ((WAITS_AND_COMPUTES, True), ({Activity.OTHER}, False)):
        clock = Clock(gang_size=3)
        clock.use(WORKED_S + 10, {0, 1, 2})
        clock.watch.used(RankUsage(frozenset({1}), num_ranks=3))
        for _ in range(400):
            clock.watch.used(RankUsage(frozenset({1}), num_ranks=3))
            found = clock.run(2.0)
            if found is not None:
                assert found.kind is PauseKind.EVENNESS and clock.now_s > BUSY_S
                assert (clock.watch.judge(found, seen) == "") is ends
                break
        else:
            pytest.fail("nothing was suspicious")


def test_a_silent_gang_that_has_not_worked_yet_and_a_single_process_may_wait():
    clock = Clock(gang_size=3)
    clock.use(WORKED_S / 2, {0, 1, 2})
    clock.watch.used(RankUsage(num_ranks=3))
    assert clock.run(StallPolicy().start_s - 100.0) is None
    fixed = Clock(StallPolicy(after_s=3.0), gang_size=3)  # a library script before `init`, too
    fixed.watch.used(RankUsage(num_ranks=3))
    assert fixed.run(1000.0) is None
    alone = Clock()
    alone.use(WORKED_S + 10, {0}, num_ranks=1)
    alone.watch.used(RankUsage(num_ranks=1))
    assert alone.run(10_000.0) is None


# -- what another node is told ---------------------------------------------------------------------


def test_a_node_says_why_the_others_have_to_wait_for_it():
    clock = Clock(gang_size=2)
    clock.steps([1.0] * 5)
    assert clock.watch.excuse({Activity.OTHER}) == ""
    assert clock.watch.excuse({Activity.COMPILING}) == "ranks are compiling"
    clock.watch.entered("saving")
    assert clock.watch.excuse({Activity.WAITING}) == "ranks are saving"
    clock.watch.used(RankUsage(frozenset(), frozenset({1}), 2))
    assert clock.watch.excuse({Activity.COMPILING}) == ""


# -- stacks ------------------------------------------------------------------------------------------

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
