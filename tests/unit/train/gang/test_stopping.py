"""Waits of a rank end when it is asked to stop."""

import os
import signal
import threading

import pytest

from phalanx.core.training.resumption import StartAction, StartDecision
from phalanx.kit.clock import ManualClock, SystemClock
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.gang.search_turn import SearchTurn
from phalanx.train.gang.stopping import StopSignal

pytestmark = pytest.mark.unit


@pytest.fixture
def stop():
    one = StopSignal(SystemClock())
    one.install()
    yield one
    one.remove()


def test_a_stop_ends_a_wait_that_has_begun_and_every_later_one(stop):
    assert not stop.pause(0.0)
    sent = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    sent.start()
    assert stop.pause(3600.0)
    assert stop.pause(3600.0)
    sent.join()


class Waits:
    """A search that finds nothing, ever."""

    pause_s = 10.0

    def next(self, now_s):
        return StartDecision(StartAction.WAIT)


def test_ranks_that_wait_for_checkpoints_leave_without_an_error_when_they_are_stopped():
    looks = []

    def pause(seconds):
        looks.append(seconds)
        return len(looks) == 3

    turn = SearchTurn(Waits(), True, LocalChannel(), ManualClock(0), pause)
    with pytest.raises(SystemExit) as left:
        turn.next()
    assert left.value.code == 0 and len(looks) == 3
