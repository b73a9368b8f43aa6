"""Agreement of ranks without processes: the shared page, and the steps at which ranks exchange requests."""

from itertools import pairwise

import pytest
import torch

from phalanx.core.training import control
from phalanx.errors import RankDesync
from phalanx.train.gang import agreement as agreements
from phalanx.train.gang import groups
from phalanx.train.gang.agreement import (
    AdaptiveInterval,
    DelayedReductionAgreement,
    FixedInterval,
    LocalAgreement,
    SharedPageAgreement,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def page(tmp_path):
    """Return the agreements of three ranks that share a page."""
    ranks = [SharedPageAgreement(tmp_path / "gang" / "page", at, 3) for at in range(3)]
    yield ranks
    for one in ranks:
        one.close()


def test_every_rank_reads_the_requests_of_all(page):
    for step, requests in ((1, (0, 0, 0)), (2, (control.STOP, 0, control.SAVE)), (3, (0, 0, 0))):
        for rank, bits in zip(page, requests, strict=True):
            rank.propose(step, bits)
        wanted = requests[0] | requests[1] | requests[2]
        assert [rank.agree(step) for rank in page] == [wanted] * 3


def test_a_rank_may_propose_the_next_step_before_the_others_have_read_this_one(page):
    for rank in page:
        rank.propose(1, control.SAVE)
    page[0].propose(2, control.STOP)
    assert page[1].agree(1) == control.SAVE


def test_a_rank_at_another_step_is_named(page):
    for rank in page[:2]:
        rank.propose(1, 0)
    with pytest.raises(RankDesync, match="local rank 2 is at step 0, this rank at 1"):
        page[0].agree(1)


def test_one_rank_agrees_with_itself_about_its_last_requests():
    agreement = LocalAgreement()
    assert agreement.agree(1) == 0
    agreement.propose(2, control.SAVE)
    agreement.propose(2, control.STOP)
    assert agreement.agree(2) == control.STOP


class GlooLike:
    """A process group that keeps a collective's tensor until another thread has had its turn."""

    def __init__(self):
        self.held = []

    def all_reduce(self, tensor, **_):
        self.held.append(tensor)
        return self

    def wait(self, *_):
        """The result is there; the tensor is still held."""

    def turn(self, _seconds):
        self.held.clear()


@pytest.mark.parametrize("waits", [True, False])
def test_the_end_waits_until_the_last_tensor_is_released(monkeypatch, waits):
    gloo = GlooLike()
    monkeypatch.setattr(agreements.dist, "all_reduce", gloo.all_reduce)
    monkeypatch.setattr(groups.time, "sleep", gloo.turn)
    if not waits:  # the control: without the wait, the tensor outlives the agreement
        monkeypatch.setattr(agreements, "await_release", lambda lent: None)
    agreement = DelayedReductionAgreement(None)
    agreement.agree(1)
    assert [type(one) for one in gloo.held] == [torch.Tensor]
    agreement.close()
    assert bool(gloo.held) is not waits


def test_a_fixed_interval_is_due_at_its_multiples():
    assert [step for step in range(1, 13) if FixedInterval(4).due(step)] == [4, 8, 12]
    assert all(FixedInterval().due(step) for step in range(1, 5))


@pytest.mark.parametrize("slowest", [1.0, 3.0])
def test_an_adaptive_interval_grows_to_a_second_of_the_slowest_rank(slowest):
    now, step_s = [0.0], 0.01
    pace = AdaptiveInterval(lambda: now[0])
    due = []
    for step in range(1, 401):
        now[0] += step_s
        if pace.due(step):
            due.append(step)
            pace.update(step, int(pace.offer(step) * slowest))
    gaps = [b - a for a, b in pairwise(due)]
    assert gaps[:5] == [1, 2, 4, 8, 16], "at most twice the last one"
    assert gaps[-1] == pytest.approx(1 / (step_s * slowest), abs=1)


def test_an_adaptive_interval_falls_at_once_when_a_rank_becomes_slow():
    pace = AdaptiveInterval(lambda: 0.0)
    for step in (1, 3, 7, 15):
        assert pace.due(step)
        pace.update(step, 1000)
    pace.update(31, 2_000_000)
    assert pace.due(32)
