"""No false alarm within a job's own pace, and every hang within a minute of it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phalanx.core.gang.activities import Activity
from phalanx.core.gang.stalls import KNOWN_STEPS, RankUsage, StallPolicy, StallWatch

pytestmark = pytest.mark.unit
TICK_S = 0.5
PAUSES = st.lists(st.floats(0.5, 90.0), min_size=KNOWN_STEPS + 2, max_size=30)
ACTIVITIES = st.sets(st.sampled_from([Activity.WAITING, Activity.OTHER]), min_size=1)


class Run:
    def __init__(self):
        self.watch, self.now_s = StallWatch(StallPolicy(), 0.0, gang_size=3), 0.0
        self.watch.began()

    def wait(self, seconds, seen):
        """Whether a stall was found, and after how long."""
        began_s = self.now_s
        while self.now_s < began_s + seconds:
            self.now_s += TICK_S
            found = self.watch.look(self.now_s)
            if found is not None and not self.watch.judge(found, seen):
                return self.now_s - began_s
        return None


def trained(pauses, seen):
    """A run with these steps after its first one, whose pause is the start and none of its pace."""
    run = Run()
    run.watch.stepped(-1)
    for number, pause_s in enumerate(pauses):
        assert run.wait(pause_s, seen) is None
        run.watch.stepped(number)
    return run


@given(PAUSES, st.data(), ACTIVITIES)
def test_no_pause_that_the_job_has_made_before_is_a_stall(pauses, data, seen):
    """Whatever the ranks do in it: even the worst evidence convicts no pause of the job's own pace."""
    run = trained(sorted(pauses, reverse=True), seen)
    again = data.draw(st.lists(st.sampled_from(pauses), min_size=1, max_size=30))
    for number, pause_s in enumerate(again, len(pauses)):
        assert run.wait(pause_s, seen) is None
        run.watch.stepped(number)


@given(PAUSES, st.booleans())
def test_a_rank_that_the_others_wait_for_is_found_within_a_minute_of_the_pace(pauses, computes):
    pauses = sorted(pauses, reverse=True)
    run = trained(pauses, {Activity.WAITING})
    run.watch.used(RankUsage(frozenset({1} if computes else ()), num_ranks=3))
    took_s = run.wait(1000.0, {Activity.WAITING, Activity.OTHER})
    assert took_s is not None and took_s <= max(pauses) + 60.0


@given(PAUSES, st.floats(50.0, 1700.0), st.sampled_from(["save", "validation", "compile"]))
def test_what_may_take_longer_takes_longer_and_a_hang_after_it_is_found(pauses, lasts_s, what):
    activity = {
        "save": Activity.SAVING,
        "validation": Activity.VALIDATING,
        "compile": Activity.COMPILING,
    }[what]
    pauses = sorted(pauses, reverse=True)
    run = trained(pauses, {Activity.WAITING})
    assume(lasts_s > max(pauses))
    assert run.wait(lasts_s, {activity, Activity.WAITING}) is None
    took_s = run.wait(1000.0, {Activity.WAITING})
    # The end of the activity is seen at the next look.
    assert took_s is not None and took_s <= max(pauses) + 75.0
