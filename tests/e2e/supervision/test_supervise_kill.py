"""However anything dies, nothing of it survives, and the right thing is said."""

import os
import signal

import pytest

from e2e.supervision.node import Node
from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.model import NodeOutcome
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

# Every rank has a worker of its own session and one that has daemonised.
FAMILY = """
    import os, sys, time
    def daemonise():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        os.wait()
    def work():
        if os.fork() == 0:
            time.sleep(600)
    daemonise()
    work()
    print("up", flush=True)
    while not os.path.exists("../leave"):
        time.sleep(0.01)
"""


def family(tmp_path, **more):
    return Node(tmp_path, FAMILY, ranks=2, **more)


def test_a_killed_rank_takes_the_generation_with_it(tmp_path):
    with family(tmp_path) as node:
        pids = node.run().pids
        for rank in (0, 1):
            node.wait_output("up", rank)
        assert len(node.marked()) == 6  # per rank: itself, a worker, a daemon
        os.kill(pids[1], signal.SIGKILL)
        failure = node.failed()
        assert (failure.rank, failure.signal, failure.cause) == (1, 9, "rank_crash")
        assert failure.message == "rank 1 was killed by SIGKILL"
        ended = node.ended()
        assert ended.outcome is NodeOutcome.FAILED
        assert ended.failure == failure
        assert node.marked() == []


def test_success_leaves_no_daemon_behind(tmp_path):
    with family(tmp_path) as node:
        node.run()
        for rank in (0, 1):
            node.wait_output("up", rank)
        (tmp_path / "leave").touch()
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert node.marked() == []


def test_kill_9_of_the_supervisor_leaves_nothing(tmp_path):
    with family(tmp_path) as node:
        node.run()
        for rank in (0, 1):
            node.wait_output("up", rank)
        node.process.send_signal(signal.SIGKILL)
        node.wait_gone()


def test_kill_9_of_the_reaper_ends_the_generation_and_another_one_can_run(tmp_path):
    with family(tmp_path) as node:
        node.run()
        for rank in (0, 1):
            node.wait_output("up", rank)
        os.kill(node.reaper(), signal.SIGKILL)
        assert "reaper" in node.failed().message
        assert node.ended().outcome is NodeOutcome.FAILED
        assert node.marked() == []
        node.run(generation=1)
        node.wait_output("up", generation=1)
        assert node.reaper()


def test_kill_9_of_supervisor_and_reaper_at_once_leaves_no_rank(tmp_path):
    # Daemons of a user survive this one; the executor finds them by their tag (see its own tests).
    with family(tmp_path) as node:
        pids = node.run().pids
        for rank in (0, 1):
            node.wait_output("up", rank)
        reaper = node.reaper()
        os.kill(reaper, signal.SIGSTOP)  # so that it cannot use the moment between the two
        os.kill(node.process.pid, signal.SIGKILL)
        os.kill(reaper, signal.SIGKILL)
        wait_until(lambda: not set(pids) & set(node.marked()))
        for pid in node.marked():
            os.kill(pid, signal.SIGKILL)


def test_end_kills_at_once_and_names_no_failure(tmp_path):
    with family(tmp_path) as node:
        node.run()
        node.wait_output("up")
        node.order(Action.END)
        ended = node.ended()
        assert (ended.outcome, ended.failure) == (NodeOutcome.FAILED, None)
        assert node.marked() == []


def test_release_kills_what_runs_and_leaves(tmp_path):
    with family(tmp_path) as node:
        node.run()
        node.wait_output("up")
        node.release()
        assert node.marked() == []
        assert node.plane.all_reports()[-1].kind == "leaving"
