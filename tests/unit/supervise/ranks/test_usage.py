"""Which ranks were active since the sample before, from real processes."""

import os
import signal
import subprocess
import sys

import pytest

from phalanx.supervise.ranks.usage import UsageMeter, usage_of
from support.waiting import wait_until

pytestmark = pytest.mark.unit
LOOPS = "while True: pass"
SLEEPS = "import sys; print('here', flush=True); sys.stdin.read()"
BELOW = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def start():
    started = []

    def run(text):
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_processor_time_is_that_of_a_rank_and_all_below_it(start):
    loops, below, sleeps = start(LOOPS), start(BELOW), start(SLEEPS)
    roots = {0: loops.pid, 1: below.pid, 2: sleeps.pid}
    assert sleeps.stdout.readline() == b"here\n"
    meter, printed = UsageMeter(), dict.fromkeys(roots, 0)
    assert meter.is_due(0.0)
    meter.sample(0.0, roots, printed)
    assert not meter.is_due(1.0) and meter.is_due(3.0)
    before = usage_of(roots)

    def used():
        now = usage_of(roots)
        return all(now[rank].cpu_s - before[rank].cpu_s > 0.3 for rank in (0, 1))

    wait_until(used, "processor time")
    active, stopped = meter.sample(3.0, roots, printed)
    assert active == {0, 1} and not stopped


def test_output_is_activity_and_a_stopped_process_is_told(start):
    sleeps = start(SLEEPS)
    assert sleeps.stdout.readline() == b"here\n"
    meter = UsageMeter()
    meter.sample(0.0, {4: sleeps.pid}, {4: 5})
    assert meter.sample(3.0, {4: sleeps.pid}, {4: 6})[0] == {4}
    assert meter.sample(6.0, {4: sleeps.pid}, {4: 6}) == (frozenset(), frozenset())
    sleeps.send_signal(signal.SIGSTOP)
    wait_until(lambda: usage_of({4: sleeps.pid})[4].stopped, "the stopped process")
    assert meter.sample(9.0, {4: sleeps.pid}, {4: 6}) == (frozenset(), frozenset({4}))
    # A process that is gone uses nothing.
    assert usage_of({0: 2**22 - 1})[0].cpu_s == 0.0
