"""A checkpoint that a user requests: asked of the ranks, followed to its commit, refused in clear words."""

import pytest

from phalanx.errors import Conflict, NotSupported
from phalanx.schemas.wire import supervision as wire

pytestmark = pytest.mark.integration


def running(rig, *, step=5, **spec):
    num = rig.submit(**spec)
    rig.turn()
    node = rig.supervisor(num)
    node.ready()
    node.started(pids=(1,))
    if step:
        node.step(0, step)
    return num, node


def committed(node, step):
    return wire.CheckpointReport(
        seq=node.next_seq(),
        generation=0,
        step=step,
        path=f"/c/step-{step}-abc",
        size_bytes=1,
        at=node.now(),
    )


def begun(node, request, step, failed=False):
    return wire.SaveBegunReport(
        seq=node.next_seq(), generation=0, request=request, step=step, failed=failed
    )


def test_a_request_reaches_the_ranks_and_ends_with_the_committed_checkpoint(rig):
    num, node = running(rig)
    before = node.step(0, 5)
    asked = rig.client.ask_save(num)
    assert (asked.attempt, asked.generation, asked.request) == (1, 0, 1)
    orders = node.step(0, 6)
    assert (orders.action, orders.saves) == ("run", 1) and orders.version != before.version
    node.sync(begun(node, 1, 7))
    assert rig.client.saves(num, asked=asked).answer_to(1, 0, 1) is None
    node.sync(committed(node, 7))
    found = rig.client.saves(num, asked=asked, wait_s=5).answer_to(1, 0, 1)
    assert (found.step, found.saved_step, found.failed) == (7, 7, False)
    assert found.path == rig.client.checkpoints(num)[-1].path
    assert rig.client.ask_save(num).request == 2  # each call is a new request
    rig.check_log(num)


def test_an_older_checkpoint_is_no_answer_and_a_failed_save_is_one(rig):
    num, node = running(rig)
    node.sync(committed(node, 5))
    asked = rig.client.ask_save(num)
    node.sync(begun(node, 1, 8))
    assert rig.client.saves(num).answer_to(*asked.answers) is None
    rig.client.ask_save(num)
    node.sync(begun(node, 2, 9, failed=True))
    assert rig.client.saves(num).answer_to(1, 0, 2).failed


def test_a_restart_ends_the_wait_and_forgets_the_request(rig):
    num, node = running(rig)
    asked = rig.client.ask_save(num)
    node.failed()
    node.ended(0, "failed")
    view = rig.client.saves(num, asked=asked, wait_s=5)
    assert (view.attempt, view.generation) == (1, 1) and not view.saves
    assert node.sync().orders.saves == 0


def test_jobs_whose_ranks_cannot_be_asked_are_refused(rig):
    num, _ = running(rig, step=0)
    with pytest.raises(Conflict, match="has reported no step yet"):
        rig.client.ask_save(num)
    waiting = rig.submit()
    with pytest.raises(Conflict, match=f"no rank of j-{waiting} runs: the job is queued"):
        rig.client.ask_save(waiting)


def test_a_script_with_a_folder_of_its_own_is_refused(rig):
    num, _ = running(rig, checkpoint={"directory": "out"})
    with pytest.raises(NotSupported, match="saves into a folder of its own"):
        rig.client.ask_save(num)
