"""A supervisor of a gang is lost: another one takes its node rank, and the others stay."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from integration.rig import URL, Rig, ScriptedSupervisor
from phalanx.core.jobs.desired import Action
from phalanx.errors import LaunchError
from phalanx.executors.protocol import SupervisorRef
from phalanx.schemas.wire import supervision as wire
from phalanx.server.loops.steps import poll_step
from phalanx.services.lifecycle import polling

pytestmark = pytest.mark.integration

NUM = 1
RESOURCES = {"nodes": 3, "slots_per_node": 1}


@pytest.fixture
def gang(rig: Rig) -> list[ScriptedSupervisor]:
    """Three supervisors, each with a rank that runs."""
    rig.submit(resources=RESOURCES)
    rig.turn()
    found = [rig.supervisor(NUM, rank) for rank in range(3)]
    for one in found:
        one.ready(4000 + one.ref.node_rank)
    for one in found:
        assert one.started(pids=(50 + one.ref.node_rank,)).action is Action.RUN
    return found


def lose(rig: Rig, one: ScriptedSupervisor) -> None:
    """It dies, and the executor confirms it; nothing is started yet."""
    rig.executor.bury(one.ref)
    poll_step(rig.platform, rig.clock.advance(1))


def test_the_others_wait_and_go_on_with_the_replacement(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    gang[0].step(0, 7)
    lose(rig, gang[1])
    view = rig.job(NUM)
    assert (view.state, view.attempt, view.reason.code) == ("recovering", 1, "node_lost")
    # That the replacement is not started yet says nothing about it.
    poll_step(rig.platform, rig.clock.advance(1))
    assert rig.job(NUM).state == "recovering"
    assert gang[0].sync().orders.action is Action.END
    assert gang[0].ended(0, "failed", step=7).action is Action.WAIT
    rig.turn()
    fresh = rig.supervisor(NUM, 1, incarnation=1)
    assert fresh.assignment.node_dir == f"{gang[1].assignment.node_dir}.1"
    assert rig.executor.num_starts == 4
    assert fresh.sync().orders.action is Action.WAIT
    assert fresh.ready(4011).action is Action.WAIT
    # The last ranks of the generation end after it has checked in.
    orders = gang[2].ended(0, "failed", step=7)
    assert (orders.action, orders.generation, orders.restarts) == (Action.RUN, 1, 1)
    assert fresh.sync().orders.generation == 1
    for one in (gang[0], fresh, gang[2]):
        one.started(1)
    view = rig.job(NUM)
    assert (view.state, view.attempt, view.generation, view.restarts) == ("running", 1, 1, 1)
    assert view.lineage is not None
    (restart,) = view.lineage.restarts
    assert (restart.cause, restart.generation) == ("node_lost", 0)
    assert not rig.executor.stopped
    rig.check_log(NUM)


def test_the_replacement_may_be_the_last_to_come(rig: Rig, gang: list[ScriptedSupervisor]) -> None:
    lose(rig, gang[0])
    for one in gang[1:]:
        one.ended(0, "failed")
    rig.turn()
    fresh = rig.supervisor(NUM, 0, incarnation=1)
    orders = fresh.ready(4010)
    # Node rank 0 is where the ranks meet.
    assert (orders.action, orders.generation, orders.master_port) == (Action.RUN, 1, 4010)


def test_the_lost_one_has_no_say_any_more(rig: Rig, gang: list[ScriptedSupervisor]) -> None:
    """Its late reports change no state, and each token is good for one supervisor."""
    lost = gang[1]
    lose(rig, lost)
    rig.turn()
    fresh = rig.supervisor(NUM, 1, incarnation=1)
    before = rig.job(NUM)
    assert lost.ready(4999).action is Action.RELEASE
    assert lost.ended(0, "succeeded").action is Action.RELEASE
    assert lost.log(0, b"last words\n").action is Action.RELEASE
    assert rig.job(NUM).state == before.state
    assert fresh.post(fresh.request(), lost.token).status_code == 401
    assert lost.post(lost.request(), fresh.token).status_code == 401

    def ask(one: ScriptedSupervisor) -> int:
        where = {"job": NUM, "attempt": 1, "node_rank": 1, "incarnation": one.ref.incarnation}
        headers = {"Authorization": f"Bearer {one.token}"}
        with httpx.Client(base_url=URL, transport=rig.transport) as http:
            path = "/api/v1/supervisors/tunnels"
            return http.get(path, params=where, headers=headers).status_code

    assert (ask(fresh), ask(lost)) == (200, 403)
    for one in (gang[0], gang[2]):
        # Had the lost one checked in again, the next generation would begin.
        assert one.ended(0, "failed").action is Action.WAIT
    # The account of the lost one still arrives, through the replacement on its node.
    saved = wire.CheckpointReport(
        seq=lost.next_seq(), generation=0, step=4, path="/c/4", at=rig.clock.now(), duration_s=0.1
    )
    lost.sync(saved)
    assert rig.job(NUM).progress.checkpoint_step == 4
    assert fresh.ready().resume_path == "/c/4"
    assert [one.text for one in rig.client.logs(NUM).lines] == ["last words"]
    rig.check_log(NUM)


def test_a_replacement_that_cannot_start_has_the_gang_placed_again(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    lose(rig, gang[1])
    rig.executor.refuse.append(LaunchError("no such luck"))
    rig.turn()
    view = rig.job(NUM)
    assert (view.state, view.reason.code) == ("stopping", "node_lost")
    assert view.reason.message.endswith("the replacement was not started: no such luck")
    for one in (gang[0], gang[2]):
        assert one.sync().orders.action is not Action.RUN
        one.ended(0, "failed")
        one.leave()
    rig.turn()
    assert rig.job(NUM).attempt == 2
    rig.check_log(NUM)


def test_a_replacement_that_dies_at_once_has_the_gang_placed_again(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    lose(rig, gang[1])
    rig.turn()
    rig.executor.bury(SupervisorRef(NUM, 1, 1, incarnation=1))
    poll_step(rig.platform, rig.clock.advance(1))
    assert rig.job(NUM).state == "stopping"


@pytest.mark.parametrize("why", ["closed", "cannot"])
def test_without_a_place_the_gang_is_placed_again(
    rig: Rig, gang: list[ScriptedSupervisor], why: str
) -> None:
    if why == "closed":
        rig.executor.nodes = tuple(replace(one, closed="lost") for one in rig.executor.nodes)
    else:
        rig.executor.replaces = False
    lose(rig, gang[1])
    view = rig.job(NUM)
    assert (view.state, view.reason.code) == ("stopping", "node_lost")


def test_a_job_that_is_cancelled_meanwhile_leaves_nothing(
    rig: Rig, gang: list[ScriptedSupervisor]
) -> None:
    lose(rig, gang[1])
    rig.client.stop(NUM)
    for one in (gang[0], gang[2]):
        one.ended(0, "failed")
        one.leave()
    rig.turn()
    # What was to be launched is known by then, and asked for.
    rig.turn()
    assert rig.job(NUM).state == "cancelled"
    assert SupervisorRef(NUM, 1, 1, incarnation=1) not in rig.executor.started
    rig.check_log(NUM)


def test_two_are_lost_at_once(rig: Rig, gang: list[ScriptedSupervisor]) -> None:
    rig.executor.bury(gang[2].ref)
    lose(rig, gang[0])
    gang[1].ended(0, "failed")
    rig.turn()
    for rank in (0, 2):
        rig.supervisor(NUM, rank, incarnation=1).ready()
    view = rig.job(NUM)
    assert (view.attempt, view.generation, view.restarts) == (1, 1, 1)


def test_a_death_that_is_noticed_twice_is_one(rig: Rig, gang: list[ScriptedSupervisor]) -> None:
    """A replica that was about to store the death comes late, when the replacement is there."""
    rig.executor.bury(gang[1].ref)
    found = rig.executor.poll([gang[1].ref])
    poll_step(rig.platform, rig.clock.advance(1))
    rig.turn()
    rig.supervisor(NUM, 1, incarnation=1).ready()
    polling._store_gone(rig.platform, found, rig.clock.advance(1))
    view = rig.job(NUM)
    assert (view.state, view.attempt) == ("recovering", 1)


def test_the_last_one_takes_the_attempt_with_it(rig: Rig, gang: list[ScriptedSupervisor]) -> None:
    for one in gang[:2]:
        rig.executor.bury(one.ref)
    lose(rig, gang[2])
    rig.turn()
    rig.turn()
    view = rig.job(NUM)
    assert (view.attempt, view.restarts) == (2, 1)
    rig.check_log(NUM)
