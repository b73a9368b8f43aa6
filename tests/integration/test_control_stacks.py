"""Stacks asked for and kept, over several nodes; guards' verdicts with the nodes they name."""

import pytest

from phalanx.core.jobs.desired import Action
from phalanx.errors import Conflict, NotFound
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.wire import supervision as wire

pytestmark = pytest.mark.integration
WAITS = (
    "Current thread 0x1 (most recent call first):\n"
    '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n'
    '  File "/x/train.py", line 33 in main\n'
)
HERE = 'Current thread 0x1 (most recent call first):\n  File "/x/train.py", line {} in main\n'


@pytest.fixture
def nodes(rig):
    num = rig.submit(resources={"nodes": 2, "slots_per_node": 1})
    rig.turn()
    found = [rig.supervisor(num, node_rank) for node_rank in (0, 1)]
    for one in found:
        one.ready()
    for one in found:
        one.started(pids=(1,))
    return found


def stacks(node, request, rank, line, text=HERE, excuse=""):
    return wire.StacksReport(
        seq=node.next_seq(),
        generation=0,
        request=request,
        at=node.now(),
        ranks=[wire.RankStacks(rank=rank, text=text.format(line))],
        excuse=excuse,
    )


def test_every_node_is_asked_and_their_answers_are_one(rig, nodes):
    asked = rig.client.ask_stacks(1)
    assert (asked.attempt, asked.generation, asked.request) == (1, 0, 1)
    orders = [one.sync().orders for one in nodes]
    assert [(one.action, one.stacks) for one in orders] == [(Action.RUN, 1)] * 2
    nodes[0].sync(stacks(nodes[0], 1, 0, 40))
    nodes[1].sync(stacks(nodes[1], 1, 1, 40))
    view = rig.client.stacks(1, asked=asked, wait_s=5)
    (found,) = view.captures
    assert [(one.rank, one.node_rank, one.place) for one in found.ranks] == [
        (0, 0, "train.py:40 in main"),
        (1, 1, "train.py:40 in main"),
    ]
    assert rig.job(1).state == "running" and rig.job(1).restarts == 0
    rig.check_log(1)


def test_a_stall_ends_nothing_before_the_other_node_has_answered(rig, nodes):
    failure = nodes[0].failure("no step for 5s", cause="stalled", rank=0)
    stalled = wire.RanksStalledReport(seq=0, generation=0, failure=failure)
    orders = (
        nodes[0]
        .sync(stacks(nodes[0], 0, 0, 33), stalled.model_copy(update={"seq": nodes[0].next_seq()}))
        .orders
    )
    assert orders.action is Action.RUN and nodes[1].sync().orders.stacks == 1
    nodes[1].sync(stacks(nodes[1], 1, 1, 40))
    assert [one.sync().orders.action for one in nodes] == [Action.END] * 2
    view = rig.job(1)
    assert (view.state, view.reason.code) == ("recovering", "stalled")
    (found,) = rig.client.stacks(1).captures
    assert [one.place for one in found.ranks] == ["train.py:33 in main", "train.py:40 in main"]
    for one in nodes:
        one.ended(0, "failed")
    view = rig.job(1)
    assert view.restarts == 1 and nodes[0].sync().orders.generation == 1
    assert nodes[0].sync().orders.after == "stalled"
    assert [one.cause for one in view.lineage.restarts] == ["stalled"]
    rig.check_log(1)


def test_a_stall_names_the_culprit_and_not_the_victim_that_another_node_reports(rig, nodes):
    """Each node has one rank: alone it has nothing to compare with."""
    failure = nodes[0].failure("no step for 5s; rank 0 waits", cause="stalled", rank=None)
    stalled = wire.RanksStalledReport(seq=0, generation=0, failure=failure)
    nodes[0].sync(
        stacks(nodes[0], 0, 0, 33, WAITS),
        stalled.model_copy(update={"seq": nodes[0].next_seq()}),
    )
    nodes[1].sync(stacks(nodes[1], 1, 1, 40))
    view = rig.job(1)
    said = "no step for 5s; rank 1 differs from the other ranks: train.py:40 in main"
    assert (view.state, view.reason.message) == ("recovering", said)
    assert (view.failure.rank, view.failure.node_rank) == (1, 1)
    assert "line 40 in main" in view.failure.traceback
    assert [one.message for one in view.lineage.restarts] == [said]
    rig.check_log(1)


def test_a_node_with_a_good_reason_keeps_the_generation_alive(rig, nodes):
    """Node 1 saves, and node 0 waits for it: a stall for node 0 alone."""

    def suspect():
        failure = nodes[0].failure("no step for 50s", cause="stalled", rank=None)
        report = wire.RanksStalledReport(seq=nodes[0].next_seq(), generation=0, failure=failure)
        nodes[0].sync(report)

    suspect()
    nodes[1].sync(stacks(nodes[1], 1, 1, 40, excuse="ranks are saving"))
    assert [one.sync().orders.action for one in nodes] == [Action.RUN] * 2
    view = rig.job(1)
    assert (view.state, view.lineage.restarts) == ("running", [])
    rig.turn(20.0)
    assert rig.job(1).state == "running"  # nobody waits for stacks any more
    # The save is over, but no step follows.
    suspect()
    assert nodes[1].sync().orders.stacks == 2
    nodes[0].sync(stacks(nodes[0], 2, 0, 33, WAITS))
    nodes[1].sync(stacks(nodes[1], 2, 1, 40))
    view = rig.job(1)
    assert (view.state, view.failure.rank) == ("recovering", 1)
    (restart,) = view.lineage.restarts
    assert restart.cause == "stalled" and restart.failed_at is not None
    rig.check_log(1)


def test_collectives_of_all_nodes_are_compared(rig, nodes):
    def answer(node, request, rank, number, done):
        row = {"group": "default 0", "number": number, "operation": "all_reduce", "done": done}
        report = stacks(node, request, rank, 33, WAITS)
        known = report.ranks[0].model_copy(
            update={"collectives": [wire.CollectiveState.model_validate(row)]}
        )
        return report.model_copy(update={"ranks": [known]})

    failure = nodes[0].failure("no step for 50s", cause="stalled", rank=None)
    stalled = wire.RanksStalledReport(seq=0, generation=0, failure=failure)
    nodes[0].sync(
        answer(nodes[0], 0, 0, 8, done=False),
        stalled.model_copy(update={"seq": nodes[0].next_seq()}),
    )
    nodes[1].sync(answer(nodes[1], 1, 1, 7, done=True))
    view = rig.job(1)
    assert "rank 1 did not join all_reduce number 8 of group default 0" in view.reason.message
    assert (view.failure.rank, view.failure.node_rank) == (1, 1)


def test_a_rank_of_another_role_is_not_blamed_for_a_stall(rig):
    """It runs another script, and so it is at another place than all the others."""
    actor = {"run": ["python", "act.py"], "slots": 1}
    learner = {"run": ["python", "train.py"], "nodes": 2, "slots": 1}
    body = {"schema": 1, "name": "r", "framework": "none"}
    request = SubmitRequest(spec={**body, "roles": {"learner": learner, "actor": actor}})
    num = rig.client.submit(request).job.num
    rig.turn()
    found = [rig.supervisor(num, node_rank) for node_rank in (0, 1, 2)]
    for one in found:
        one.ready()
    for one in found:
        one.started(pids=(1,))
    failure = found[0].failure("no step for 5s; rank 0 waits", cause="stalled", rank=None)
    stalled = wire.RanksStalledReport(seq=0, generation=0, failure=failure)
    found[0].sync(
        stacks(found[0], 0, 0, 33, WAITS),
        stalled.model_copy(update={"seq": found[0].next_seq()}),
    )
    found[1].sync(stacks(found[1], 1, 1, 33, WAITS))
    found[2].sync(stacks(found[2], 1, 2, 7))
    view = rig.job(num)
    assert view.state == "recovering" and view.failure.rank is None
    assert (
        view.reason.message == "no step for 5s; rank 0 waits for other ranks: train.py:33 in main"
    )


def test_a_node_that_keeps_silent_is_waited_for_ten_seconds(rig, nodes):
    failure = nodes[0].failure("no step for 5s", cause="stalled", rank=0)
    nodes[0].sync(wire.RanksStalledReport(seq=nodes[0].next_seq(), generation=0, failure=failure))
    rig.turn(9.0)
    assert rig.job(1).state == "running"
    rig.turn(2.0)
    assert rig.job(1).state == "recovering"


def test_where_nothing_runs_nobody_is_asked(rig):
    with pytest.raises(NotFound):
        rig.client.ask_stacks(7)
    rig.submit()
    with pytest.raises(Conflict, match="no rank of j-1 runs"):
        rig.client.ask_stacks(1)
    assert rig.client.stacks(1).captures == []


def test_a_guards_verdict_names_the_nodes_of_its_ranks(rig, nodes):
    report = wire.GuardReport(
        seq=nodes[0].next_seq(),
        generation=0,
        step=7,
        what="spike",
        origin="hardware",
        action="applied",
        ranks=[1],
    )
    nodes[0].sync(report)
    (found,) = [one for one in rig.client.history(1) if one.kind == "guarded"]
    assert found.data["origin"] == "hardware" and len(found.data["nodes"]) == 1
    rig.check_log(1)
