"""Whole lives of jobs, through HTTP, with a fake executor and a supervisor that follows a script."""

from __future__ import annotations

import pytest

from integration.rig import Rig
from phalanx.core.jobs.desired import Action
from phalanx.errors import Conflict, NotFound, SpecInvalid
from phalanx.schemas.wire import supervision as wire

pytestmark = pytest.mark.integration


def launch(rig: Rig, num: int, attempt: int = 1):
    rig.turn()
    assert rig.job(num).state == "starting"
    supervisor = rig.supervisor(num, attempt=attempt)
    orders = supervisor.ready()
    assert orders.action is Action.RUN
    supervisor.started()
    assert rig.job(num).state == "running"
    return supervisor


def test_a_job_succeeds(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    rig.clock.advance(1)
    supervisor.step(0, 1)
    view = rig.job(num)
    assert [one.pid for one in view.ranks] == [1, 2, 3]
    assert (view.progress.step, view.progress.last_metrics) == (1, {"loss": 0.5})
    assert supervisor.ended(0, "succeeded", step=1).action is Action.RELEASE
    supervisor.leave()
    rig.turn()
    view = rig.job(num)
    assert (view.state, view.reason.code) == ("succeeded", "completed")
    assert view.lineage is not None and view.lineage.generations == 1
    assert rig.client.pools()[0].num_free == 4
    rig.check_log(num)


def test_a_killed_rank_costs_one_generation(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    supervisor.step(0, 5)
    rig.clock.advance(2)
    assert supervisor.failed(traceback="Traceback …").action is Action.END
    assert rig.job(num).state == "recovering"
    orders = supervisor.ended(0, "failed", step=5)
    assert (orders.action, orders.generation, orders.master_port) == (Action.RUN, 1, 4100)
    supervisor.started(1)
    rig.clock.advance(0.4)
    supervisor.step(1, 4)
    view = rig.job(num)
    assert (view.state, view.generation, view.restarts) == ("running", 1, 1)
    assert view.failure is not None and view.failure.rank == 1
    assert view.failure.traceback == "Traceback …"
    assert view.lineage is not None
    (restart,) = view.lineage.restarts
    assert (restart.cause, restart.generation, restart.lost_s) == ("rank_crash", 0, 0.4)
    rig.check_log(num)


def test_a_dead_supervisor_requeues_the_job(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    supervisor.step(0, 3)
    rig.executor.bury(supervisor.ref)
    rig.turn(1)
    view = rig.job(num)
    assert (view.state, view.attempt, view.restarts) == ("starting", 2, 1)
    assert launch(rig, num, attempt=2).assignment.gang.attempt == 2
    rig.check_log(num)


def test_stop_asks_first_and_is_confirmed(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    view = rig.client.stop(num, grace_s=5)
    assert (view.state, view.goal) == ("stopping", "cancel")
    orders = supervisor.sync().orders
    assert (orders.action, orders.grace_left_s) == (Action.STOP, 5.0)
    assert supervisor.ended(0, "stopped", step=2).action is Action.RELEASE
    assert rig.job(num).state == "stopping"
    supervisor.leave()
    rig.turn()
    assert rig.job(num).state == "cancelled"
    assert rig.client.stop(num).state == "cancelled"  # may be repeated
    with pytest.raises(Conflict, match=r"j-1 has already ended \(cancelled\)"):
        rig.client.stop(num, goal="pause")
    rig.check_log(num)


def test_pause_and_resume(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    rig.client.stop(num, goal="pause")
    with pytest.raises(Conflict, match=r"still stopping \(goal: pause\)"):
        rig.client.resume(num)
    supervisor.ended(0, "stopped", step=2)
    supervisor.leave()
    rig.turn()
    assert rig.job(num).state == "paused"
    rig.turn(100)
    assert rig.job(num).state == "paused"
    rig.client.resume(num)
    rig.turn()
    assert (rig.job(num).state, rig.job(num).attempt) == ("starting", 2)
    rig.check_log(num)


def test_the_owner_may_have_a_paused_job_begin_anew(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    at = supervisor.now()
    report = wire.CheckpointReport(
        seq=supervisor.next_seq(), generation=0, step=2, path="/c/2", at=at
    )
    supervisor.sync(report)
    with pytest.raises(Conflict, match="only a paused job can begin anew"):
        rig.client.resume(num, begin_anew=True)
    rig.client.stop(num, goal="pause")
    supervisor.ended(0, "stopped", step=2)
    supervisor.leave()
    rig.turn()
    assert rig.job(num).progress.checkpoint_path == "/c/2"
    rig.client.resume(num, begin_anew=True)
    rig.turn()
    view = rig.job(num)
    assert (view.attempt, view.progress.checkpoint_path) == (2, None)
    fresh = rig.supervisor(num, attempt=2)
    orders = fresh.ready()
    assert (orders.resume_path, orders.beginning) == (None, 1)
    assert "begin_anew_requested" in str(rig.client.events(num).events)
    rig.check_log(num)


def test_a_job_whose_last_checkpoint_is_missing_says_so(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    supervisor.sync(
        wire.RanksEndedReport(
            seq=supervisor.next_seq(),
            generation=0,
            outcome="succeeded",
            port=4001,
            step=9,
            unsaved="step 9: No space left on device",
        )
    )
    supervisor.leave()
    rig.turn()
    view = rig.job(num)
    assert (view.state, view.reason.code) == ("succeeded", "final_checkpoint_not_saved")
    assert "No space left on device" in view.reason.message


def test_a_supervisor_that_does_not_leave_is_killed(rig: Rig) -> None:
    num = rig.submit()
    launch(rig, num)
    rig.client.stop(num, grace_s=5)
    rig.turn(6)
    assert not rig.executor.stopped
    rig.turn(16)  # grace and slack are over
    assert rig.executor.stopped
    rig.turn()
    assert rig.job(num).state == "cancelled"


def test_slots_stay_held_until_death_is_confirmed(rig: Rig) -> None:
    rig.executor.slow_deaths = True
    num, behind = rig.submit(), rig.submit()
    supervisor = launch(rig, num)
    rig.client.stop(num, grace_s=0)
    supervisor.sync(wire.LeavingReport(seq=supervisor.next_seq()))
    rig.turn(60)
    assert (rig.job(num).state, rig.job(behind).state) == ("stopping", "queued")
    rig.executor.bury(supervisor.ref)
    rig.turn()
    assert (rig.job(num).state, rig.job(behind).state) == ("cancelled", "starting")


def test_cancel_before_launch_starts_nothing(rig: Rig) -> None:
    from phalanx.services.planning.scheduling import scheduling_step

    num = rig.submit()
    scheduling_step(rig.platform, rig.clock.now())
    rig.client.stop(num)
    rig.turn()
    rig.turn()
    assert rig.executor.num_starts == 0
    assert rig.job(num).state == "cancelled"


def test_two_nodes_open_when_both_are_ready_and_fail_together(rig: Rig) -> None:
    num = rig.submit(resources={"nodes": 2, "slots_per_node": 2})
    rig.turn()
    first, second = rig.supervisor(num, 0), rig.supervisor(num, 1)
    assert first.ready(4000).action is Action.WAIT
    assert second.ready(4001).action is Action.RUN
    assert first.sync().orders.master_port == 4000
    first.started(pids=(1, 2))
    assert rig.job(num).state == "starting"
    second.started(pids=(3, 4))
    assert [one.pid for one in rig.job(num).ranks] == [1, 2, 3, 4]
    # The connection error is seen first and is only a symptom: the killed rank is the cause.
    first.failed(rank=0, message="rank 0: RuntimeError: Connection closed", collateral=True)
    second.skew_us = 3_600_000_000
    assert second.sync().orders.action is Action.END
    second.failed(rank=3, message="rank 3 was killed by SIGKILL")
    assert rig.job(num).failure.rank == 3
    assert first.ended(0, "failed", step=1).action is Action.WAIT
    assert second.ended(0, "failed", step=1).action is Action.RUN
    assert first.sync().orders.generation == 1


def test_unknown_jobs_are_not_found(rig: Rig) -> None:
    for call in (rig.client.job, rig.client.events, rig.client.logs, rig.client.checkpoints):
        with pytest.raises(NotFound, match="no job j-9"):
            call(9)


def test_a_job_waits_for_another_outside_of_the_queue(rig: Rig) -> None:
    first = rig.submit()
    second = rig.submit(depends_on=[f"j-{first}"])
    third = rig.submit(depends_on={"afternotok": f"j-{second}"})
    supervisor = launch(rig, first)
    view = rig.job(second)
    assert (view.state, view.reason.code) == ("waiting", "waiting_for_dependencies")
    assert [(one.label, one.kind, one.state) for one in view.waits_for] == [
        (f"j-{first}", "afterok", "running")
    ]
    assert f"waits for j-{first} to succeed" in rig.client.why(second).reason.message
    supervisor.step(0, 1)
    supervisor.ended(0, "succeeded", step=1)
    supervisor.leave()
    rig.turn()
    assert rig.job(first).state == "succeeded"
    supervisor = launch(rig, second)
    supervisor.ended(0, "succeeded", step=1)
    supervisor.leave()
    rig.turn()
    assert (rig.job(third).state, rig.job(third).reason.code) == ("cancelled", "dependency_failed")
    rig.check_log(third)
    with pytest.raises(SpecInvalid, match="there is no such job"):
        rig.submit(depends_on="j-999")
