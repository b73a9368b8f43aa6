"""Requests that count one step later: a save that is due is made once."""

import pytest
import torch

from phalanx.core import control
from phalanx.train import agreement
from phalanx.train.agreement import DelayedReduction

pytestmark = pytest.mark.unit


class Done:
    def wait(self):
        return True


@pytest.fixture
def one_rank(monkeypatch):
    def all_reduce(flags: torch.Tensor, **given) -> Done:
        return Done()

    monkeypatch.setattr(agreement.dist, "all_reduce", all_reduce)
    return DelayedReduction(None)


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
    class Forgetful(DelayedReduction):
        def propose(self, step, requests):
            self._sent = 0
            super().propose(step, requests)

    assert saves(Forgetful(None), {3}) == [4, 5]


def test_a_save_asked_for_again_later_is_made_again_and_stops_are_never_held_back(one_rank):
    assert saves(one_rank, {3, 4, 5, 6}) == [4, 6]
    for step in range(20, 24):
        one_rank.propose(step, control.STOP)
        assert (one_rank.agree(step) & control.STOP != 0) is (step > 20)
