"""Stacks of ranks that cannot answer: what is said in their place."""

import signal
import subprocess
import sys

import pytest

from phalanx.core.gang.activities import Activity, activity_of
from phalanx.supervise.ranks.rank import LocalRank
from phalanx.supervise.ranks.stacks import StackCollection
from support.waiting import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture
def process():
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def answers(folder, pid):
    """What a rank without the library answers, which is known at once."""
    rank = LocalRank(3, folder, loop=None, observer=None, pid=pid)
    found = []
    StackCollection([rank], None, found.extend)
    (one,) = found
    return one


def test_a_rank_without_a_handler_gets_no_signal_and_says_why(tmp_path, process):
    one = answers(tmp_path, process.pid)
    assert (one.rank, one.text) == (3, "") and "does not use phalanx.train" in one.why
    assert process.poll() is None
    assert activity_of(one.text, one.why) is Activity.UNKNOWN


def test_a_stopped_rank_is_told_without_a_handler_too(tmp_path, process):
    process.send_signal(signal.SIGSTOP)

    def stopped():
        one = answers(tmp_path, process.pid)
        return activity_of(one.text, one.why) is Activity.STOPPED

    wait_until(stopped, "the stopped rank")
