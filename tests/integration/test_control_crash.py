"""The control plane dies between a commit and its effect, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.rig import Rig, open_rig
from phalanx.core.jobs.model import NodeOutcome
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.protocol import SupervisorRef
from phalanx.kit.clock import ManualClock
from phalanx.schemas.wire.supervision import ExitRecord, RanksEndedReport
from phalanx.services.lifecycle import dispatch
from phalanx.services.lifecycle.dispatch import LeaseOwner
from phalanx.services.lifecycle.polling import poll_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.store import outbox
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before the effect", "after the effect"])
def test_a_launch_that_was_cut_off_is_executed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    executor, clock = FakeExecutor(), ManualClock()
    real = dispatch._finish if when == "after the effect" else dispatch._execute

    def die(*args: object) -> None:
        raise Crash

    with open_rig(tmp_path / "home", executor=executor, clock=clock) as rig:
        num = rig.submit()
        scheduling_step(rig.platform, clock.now())
        monkeypatch.setattr(dispatch, real.__name__, die)
        with pytest.raises(Crash):
            rig.turn()
        monkeypatch.undo()
        assert executor.num_starts == (1 if when == "after the effect" else 0)
        poll_step(rig.platform, clock.now())
        assert rig.job(num).state == "starting"  # the launch is not over: nobody asks for it
    with open_rig(tmp_path / "home", executor=executor, clock=clock) as rig:
        rig.store.transact(outbox.free_all)
        rig.owner = LeaseOwner("test", "t2")
        rig.turn()
        assert executor.num_starts == 1
        supervisor = rig.supervisor(num)
        supervisor.ready()  # its token fits: both launches made the same one
        supervisor.started()
        assert rig.job(num).state == "running"
        rig.check_log(num)


def test_without_a_free_lease_the_successor_waits_for_it_to_run_out(tmp_path: Path) -> None:
    """The guard of the test above, off: nothing is started until the lease is over."""
    with open_rig(tmp_path / "home") as rig:
        rig.submit()
        scheduling_step(rig.platform, rig.clock.now())
        rig.store.transact(
            lambda tx: outbox.lease(
                tx,
                owner="dead",
                token="d",
                now=rig.clock.now(),
                expires_at=rig.clock.now() + 60_000_000,
                limit=9,
            )
        )
        rig.turn()
        assert rig.executor.num_starts == 0
        rig.turn(61)
        assert rig.executor.num_starts == 1


def test_a_job_goes_on_while_the_control_plane_is_away(tmp_path: Path) -> None:
    executor, clock = FakeExecutor(), ManualClock()
    with open_rig(tmp_path / "home", executor=executor, clock=clock) as rig:
        num = rig.submit()
        rig.turn()
        old = rig.supervisor(num)
        old.ready()
        old.started()
    with open_rig(tmp_path / "home", executor=executor, clock=clock) as rig:
        rig.turn(30)
        assert (rig.job(num).state, rig.job(num).restarts) == ("running", 0)
        old.rig = rig
        old.step(0, 9)
        old.ended(0, "succeeded", step=9)
        old.leave()
        rig.turn()
        assert rig.job(num).state == "succeeded"
        rig.check_log(num)


def test_an_end_that_was_never_reported_is_read_from_the_exit_record(rig: Rig) -> None:
    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    ended = RanksEndedReport(seq=3, generation=0, outcome=NodeOutcome.SUCCEEDED, port=1, step=7)
    record = ExitRecord(attempt=1, node_rank=0, released=False, ended=ended)
    rig.executor.bury(supervisor.ref, record)
    rig.turn()
    view = rig.job(num)
    assert (view.state, view.restarts) == ("succeeded", 0)
    rig.check_log(num)


def test_without_the_record_the_same_end_is_a_loss(rig: Rig) -> None:
    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    rig.executor.bury(supervisor.ref)
    rig.turn()
    assert rig.job(num).restarts == 1


def test_a_launch_that_cannot_be_gives_the_slots_back(rig: Rig) -> None:
    rig.executor.refuse = [LaunchError("no such interpreter")] * 4
    num = rig.submit(recovery={"start_failed": {"count": 1, "first_wait": "0s"}})
    rig.turn()
    assert (rig.job(num).state, rig.job(num).restarts) == ("queued", 1)
    rig.turn()
    view = rig.job(num)
    assert (view.state, view.reason.code) == ("failed", "budget_spent")
    assert "no such interpreter" in view.reason.message
    assert rig.client.pools()[0].num_free == 4
    rig.check_log(num)


def test_half_a_gang_is_never_left_behind(rig: Rig) -> None:
    """The second node cannot be started: the first one is told to leave, and the slots wait for it."""
    real, calls = rig.executor.start, []

    def start(node, assignment):
        calls.append(assignment.node_rank)
        if assignment.node_rank == 1:
            raise LaunchError("no room")
        real(node, assignment)

    rig.executor.start = start
    num = rig.submit(resources={"nodes": 2, "slots_per_node": 1})
    rig.turn()
    assert calls == [0, 1]
    assert rig.job(num).state == "stopping"
    first = rig.supervisor(num, 0)
    assert first.ready().action == "release"
    assert rig.client.pools()[0].num_free == 2
    first.leave()
    rig.executor.start = real
    rig.turn()
    assert rig.job(num).state == "starting" and rig.job(num).attempt == 2


def test_an_executor_that_is_away_is_asked_again(rig: Rig) -> None:
    rig.executor.refuse = [ExecutorUnavailable("no answer")]
    num = rig.submit()
    rig.turn()
    assert (rig.job(num).state, rig.executor.num_starts) == ("starting", 0)
    rig.turn(0.1)
    assert rig.executor.num_starts == 0
    rig.turn(1)
    assert (rig.job(num).state, rig.executor.num_starts) == ("starting", 1)


def test_supervisors_are_only_asked_for_after_their_launch(rig: Rig) -> None:
    num = rig.submit()
    scheduling_step(rig.platform, rig.clock.now())
    assert poll_step(rig.platform, rig.clock.now()).refs == ()
    rig.turn()
    assert poll_step(rig.platform, rig.clock.now()).refs == (SupervisorRef(num, 1, 0),)
