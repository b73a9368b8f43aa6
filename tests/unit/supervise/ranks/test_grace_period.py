"""The time that ranks have to save and exit."""

import os
import subprocess

import pytest

from phalanx.supervise.eventloop import Timer
from phalanx.supervise.ranks.grace_period import GracePeriod

pytestmark = pytest.mark.unit


class Loop:
    """Keeps what it is asked for; the test makes the calls."""

    def __init__(self):
        self.timers, self.watched = [], {}

    def call_later(self, seconds, call):
        self.timers.append((seconds, Timer(call)))
        return self.timers[-1][1]

    def watch(self, descriptor, call):
        self.watched[descriptor] = call

    def forget(self, descriptor):
        del self.watched[descriptor]

    def due(self):
        return [seconds for seconds, timer in self.timers if timer.call is not None]


class Clock:
    def __init__(self):
        self.at = 100.0

    def monotonic(self):
        return self.at


class Rig:
    def __init__(self):
        self.loop, self.clock, self.calls = Loop(), Clock(), []
        self.grace = GracePeriod(
            self.loop,
            self.clock,
            lambda: self.calls.append("left"),
            lambda: self.calls.append("over"),
        )


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.grace.close()


def test_a_repeated_order_may_shorten_the_time_and_never_extends_it(rig):
    assert rig.grace.left_s == float("inf")
    rig.grace.begin(10.0)
    rig.grace.begin(30.0)
    assert rig.loop.due() == [10.0]
    rig.grace.begin(2.0)
    assert rig.loop.due() == [2.0]
    rig.clock.at += 1.5
    assert rig.grace.left_s == 0.5
    rig.clock.at += 1.5
    assert rig.grace.left_s == 0.0


def test_the_end_of_the_time_is_told(rig):
    rig.grace.begin(1.0)
    rig.loop.timers[0][1].call()
    assert rig.calls == ["over"]


def test_each_end_of_a_signalled_process_is_told_once(rig):
    child = subprocess.Popen(["/bin/sleep", "600"])
    try:
        handle = os.pidfd_open(child.pid)
        rig.grace.follow([handle])
        assert rig.grace.waiting and not rig.calls
        rig.loop.watched[handle]()
        assert rig.calls == ["left"] and not rig.grace.waiting and not rig.loop.watched
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)  # closed
    finally:
        child.kill()
        child.wait()


def test_after_close_nothing_is_told_any_more(rig):
    handle = os.open(os.devnull, os.O_RDONLY)
    rig.grace.begin(5.0)
    rig.grace.follow([handle])
    rig.grace.close()
    assert not rig.loop.due() and not rig.loop.watched and not rig.grace.waiting
