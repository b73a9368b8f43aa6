"""Tunnels through the control plane: both sides, their rights, repetitions, limits and ends."""

from __future__ import annotations

import base64

import httpx
import pytest

from integration.rig import URL, Rig
from integration.test_control_job_life import launch
from phalanx.core.jobs.desired import Action
from phalanx.core.tunnels.model import JOIN_WITHIN_S, MAX_OF_JOB, SILENT_S
from phalanx.errors import Conflict, NotFound, SpecInvalid, TooManyRequests, UserError
from phalanx.schemas.wire.tunnels import OpenTunnelRequest

pytestmark = pytest.mark.integration
NODE = "/api/v1/supervisors/tunnels"
LS = OpenTunnelRequest(kind="exec", command=["ls", "-l"])


class NodeSide:
    """The calls of a supervisor, by hand."""

    def __init__(self, rig: Rig, supervisor) -> None:
        gang = supervisor.assignment.gang
        self.key = {
            "job": gang.job.num,
            "attempt": gang.attempt,
            "node_rank": supervisor.assignment.node_rank,
        }
        self.http = httpx.Client(
            base_url=URL,
            transport=rig.transport,
            headers={"Authorization": f"Bearer {supervisor.assignment.token}"},
            params=self.key,
        )

    def waiting(self):
        answer = self.http.get(NODE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, tunnel: str, at: int, data: bytes, over: bool = False):
        body = {"at": at, "data": base64.b64encode(data).decode(), "over": over}
        return self.http.post(f"{NODE}/{tunnel}", json=body)

    def read(self, tunnel: str, after: int = 0):
        return self.http.get(f"{NODE}/{tunnel}", params={**self.key, "after": after})


@pytest.fixture
def running(rig: Rig):
    supervisor = launch(rig, rig.submit())
    return supervisor, NodeSide(rig, supervisor)


def read(rig: Rig, tunnel: str, after: int = 0):
    chunk = rig.client.tunnels.receive(1, tunnel, after)
    return base64.b64decode(chunk.data), chunk.over, chunk.why


def test_bytes_go_both_ways_and_the_end_comes_behind_them(rig: Rig, running) -> None:
    supervisor, node = running
    before = supervisor.sync().orders
    view = rig.client.tunnels.open(1, LS)
    orders = supervisor.sync().orders
    assert (orders.action, orders.tunnels) == (Action.RUN, 1)
    assert orders.version != before.version
    (order,) = node.waiting()
    assert (order["tunnel"], order["command"], order["rank"]) == (view.tunnel, ["ls", "-l"], 0)
    assert node.waiting() == []  # each is given once
    assert rig.client.tunnels.send(1, view.tunnel, 0, b"in").taken == 2
    assert rig.client.tunnels.send(1, view.tunnel, 0, b"in").taken == 2  # repeated
    assert base64.b64decode(node.read(view.tunnel).json()["data"]) == b"in"
    assert node.send(view.tunnel, 0, b"out").json()["taken"] == 3
    assert node.send(view.tunnel, 3, b"put", over=True).json()["taken"] == 6
    data, over, why = read(rig, view.tunnel)
    assert (data, over, why) == (b"output", True, "")
    assert read(rig, view.tunnel, 6) == (b"", True, "")
    assert rig.client.tunnels.send(1, view.tunnel, 2, b"late").over


def test_the_request_is_in_the_history_and_its_command_in_the_audit_log(rig: Rig, running) -> None:
    rig.client.tunnels.open(1, LS)
    kinds = [one.kind for one in rig.client.history(1)]
    assert kinds.count("tunnel_requested") == 1
    assert "-l" not in str([one.data for one in rig.client.history(1)])
    rig.check_log(1)


def test_only_the_owner_and_the_supervisor_of_the_node_reach_a_tunnel(rig: Rig, running) -> None:
    _, node = running
    view = rig.client.tunnels.open(1, LS)
    node.waiting()
    other = httpx.Client(
        base_url=URL,
        transport=rig.transport,
        params=node.key,
        headers={"Authorization": "Bearer wrong"},
    )
    assert other.get(f"{NODE}/{view.tunnel}").status_code == 401
    assert other.get(NODE).status_code == 401
    assert node.http.get(f"{NODE}/{'0' * 32}").status_code == 404
    wrong = {**node.key, "node_rank": 7}
    assert node.http.get(f"{NODE}/{view.tunnel}", params=wrong).status_code == 401
    second = rig.submit()
    with pytest.raises(NotFound):
        rig.client.tunnels.receive(second, view.tunnel, 0)


def test_a_tunnel_that_was_not_announced_cannot_be_used_by_the_node(rig: Rig, running) -> None:
    _, node = running
    view = rig.client.tunnels.open(1, LS)
    assert node.read(view.tunnel).status_code == 404  # it has not joined
    node.waiting()
    assert node.read(view.tunnel).status_code == 200


def test_what_cannot_be_opened_is_said(rig: Rig, running) -> None:
    supervisor, _ = running
    with pytest.raises(UserError, match="j-1 has no rank 99"):
        rig.client.tunnels.open(1, LS.model_copy(update={"rank": 99}))
    with pytest.raises(SpecInvalid, match="give the program"):
        rig.client.tunnels.open(1, OpenTunnelRequest.model_construct(kind="exec", command=[]))
    for _ in range(MAX_OF_JOB):
        rig.client.tunnels.open(1, LS)
    with pytest.raises(TooManyRequests, match="as many open commands"):
        rig.client.tunnels.open(1, LS)
    supervisor.ended()
    with pytest.raises(Conflict):
        rig.client.tunnels.open(1, LS)


def test_a_job_that_waits_has_no_rank_to_reach(rig: Rig) -> None:
    rig.submit()
    with pytest.raises(Conflict, match="no rank of j-1 runs"):
        rig.client.tunnels.open(1, LS)


def test_a_tunnel_ends_where_its_supervisor_does_not_come_and_where_its_client_is_gone(
    rig: Rig, running
) -> None:
    _, node = running
    view = rig.client.tunnels.open(1, LS)
    rig.clock.advance(JOIN_WITHIN_S + 1)
    _, over, why = read(rig, view.tunnel)
    assert over and "did not come within" in why
    second = rig.client.tunnels.open(1, LS)
    node.waiting()
    rig.clock.advance(SILENT_S + 1)
    assert node.read(second.tunnel).json()["over"]


def test_a_client_that_leaves_ends_what_runs(rig: Rig, running) -> None:
    _, node = running
    with rig.client.tunnels.connect(1, LS):
        (order,) = node.waiting()
    answer = node.read(order["tunnel"]).json()
    assert (answer["over"], answer["why"]) == (True, "closed by its client")


def test_a_slow_reader_holds_back_its_sender(rig: Rig, running) -> None:
    _, node = running
    view = rig.client.tunnels.open(1, LS)
    node.waiting()
    piece, at = bytes(1 << 16), 0
    while (taken := node.send(view.tunnel, at, piece).json()["taken"]) > at:
        at = taken
    assert at == 1 << 20
    assert len(read(rig, view.tunnel)[0]) == 1 << 17
    rig.client.tunnels.receive(1, view.tunnel, 1 << 17)
    assert node.send(view.tunnel, at, piece).json()["taken"] == at + len(piece)
