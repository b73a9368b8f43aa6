"""Requests that count one step later: a save that is due is made once."""

from itertools import pairwise

import pytest
import torch

from phalanx.core.training import control
from phalanx.train.gang import agreement
from phalanx.train.gang.agreement import AdaptiveInterval, DelayedReductionAgreement

pytestmark = pytest.mark.unit


class Done:
    def wait(self):
        return True


@pytest.fixture
def one_rank(monkeypatch):
    def all_reduce(flags: torch.Tensor, **given) -> Done:
        return Done()

    monkeypatch.setattr(agreement.dist, "all_reduce", all_reduce)
    return DelayedReductionAgreement(None)


def saves(one, due_at, steps=12):
    """A loop as `train.loop` runs it: a save is due from a step on, until it is made."""
    made, due = [], False
    for step in range(1, steps + 1):
        due = due or step in due_at
        one.propose(step, control.SAVE if due else 0)
        if one.agree(step) & control.SAVE:
            made.append(step)
            due = False
    return made


def test_what_is_asked_for_once_is_saved_once(one_rank):
    assert saves(one_rank, {3, 8}) == [4, 9]


def test_without_memory_of_what_was_sent_it_is_saved_twice(one_rank):
    class Forgetful(DelayedReductionAgreement):
        def propose(self, step, requests):
            self._sent = 0
            super().propose(step, requests)

    assert saves(Forgetful(None), {3}) == [4, 5]


def test_a_save_asked_for_again_later_is_made_again_and_stops_are_never_held_back(one_rank):
    assert saves(one_rank, {3, 4, 5, 6}) == [4, 6]
    for step in range(20, 24):
        one_rank.propose(step, control.STOP)
        assert (one_rank.agree(step) & control.STOP != 0) is (step > 20)


def reductions(step_s, steps, largest=None):
    """At which steps two ranks ask, when a step takes so long; `largest` is the other rank's, in µs."""
    now, due, offers = [0.0], [], [0]
    pace = AdaptiveInterval(monotonic=lambda: now[0])
    for step in range(1, steps + 1):
        now[0] += step_s
        if pace.due(step):
            due.append(step)
            pace.update(step, offers[-1] if largest is None or len(due) < 3 else largest)
            offers.append(pace.offer(step))
    return due


def test_ranks_ask_one_another_about_once_a_second_and_at_first_more_often():
    due = reductions(0.01, 1000)
    assert due[:6] == [1, 2, 3, 5, 9, 17]
    between = [b - a for a, b in pairwise(due)]
    assert all(b <= 2 * a for a, b in pairwise(between))
    assert set(between[-5:]) == {100}


def test_steps_longer_than_a_second_ask_each_time_and_the_slowest_rank_counts():
    assert reductions(2.0, 20) == list(range(1, 21))
    between = [b - a for a, b in pairwise(reductions(0.01, 400, largest=50_000))]
    assert set(between[-5:]) == {20}
    assert max(b - a for a, b in pairwise(reductions(1e-7, 5000))) == 1000


def test_a_stop_arrives_when_the_next_reduction_is_due(one_rank, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(one_rank, "_pace", AdaptiveInterval(monotonic=lambda: now[0]))
    heard = []
    for step in range(1, 600):
        now[0] += 0.01
        one_rank.propose(step, control.STOP if step == 250 else 0)
        if one_rank.agree(step) & control.STOP:
            heard.append(step)
    assert len(heard) == 1 and 250 < heard[0] <= 250 + 2 * 100


class Pending:
    """A reduction that a peer has not joined yet."""

    def __init__(self, ends: bool) -> None:
        self.ends, self.waits = ends, []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if not self.ends:
            raise RuntimeError("Operation timed out!")
        return True


@pytest.mark.parametrize("ends", [True, False])
def test_the_last_reduction_is_seen_to_its_end_before_the_interpreter_goes(monkeypatch, ends):
    work = Pending(ends)
    monkeypatch.setattr(agreement.dist, "all_reduce", lambda flags, **given: work)
    one = DelayedReductionAgreement(None)
    one.agree(1)
    one.close()
    one.close()
    assert [wait.total_seconds() for wait in work.waits] == [5.0]
