"""Tunnels through the control plane: both sides, their rights, repetitions, limits and ends."""

from __future__ import annotations

import base64
from dataclasses import replace

import httpx
import pytest

from integration.rig import URL, Rig
from integration.test_control_job_life import launch
from phalanx.core.contract.access import Scope
from phalanx.core.jobs.desired import Action
from phalanx.core.tunnels.model import (
    JOIN_WITHIN_S,
    LINGER_S,
    MAX_OF_JOB,
    MAX_TUNNELS,
    SILENT_S,
)
from phalanx.core.tunnels.streams import LIMIT_BYTES
from phalanx.errors import (
    Conflict,
    NotFound,
    PermissionDenied,
    SpecInvalid,
    TooManyRequests,
    UserError,
)
from phalanx.schemas.wire.tunnels import MAX_CHUNK_BYTES, OpenTunnelRequest
from phalanx.sdk import PhalanxClient
from phalanx.server.tunnels import routes
from phalanx.server.tunnels.registry import NodeKey, TunnelRegistry
from phalanx.services.queries.tunnels import announce, place_of

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


def of_role(rig: Rig, name: str, role: str) -> PhalanxClient:
    """A client with all scopes of an account with a role in the project of the job."""
    rig.client.accounts.add(name)
    rig.client.accounts.grant(f"user:{name}", role, "default")
    token = rig.client.create_token(name, [Scope.ADMIN], principal=f"user:{name}").token
    return PhalanxClient(URL, token, transport=rig.transport)


def test_a_member_that_owns_jobs_may_not_enter_them_and_an_operator_may(rig: Rig, running) -> None:
    with of_role(rig, "ada", "member") as member, pytest.raises(PermissionDenied):
        member.tunnels.open(1, LS)
    with of_role(rig, "olga", "operator") as operator:
        assert operator.tunnels.open(1, LS).job == 1


def test_another_operator_does_not_reach_the_tunnel_of_the_first(rig: Rig, running) -> None:
    _, node = running
    view = rig.client.tunnels.open(1, LS)
    node.waiting()
    node.send(view.tunnel, 0, b"secret")
    with of_role(rig, "olga", "operator") as other:
        for call in (
            lambda: other.tunnels.receive(1, view.tunnel, 0),
            lambda: other.tunnels.send(1, view.tunnel, 0, b"rm -rf /"),
            lambda: other.tunnels.end(1, view.tunnel),
        ):
            with pytest.raises(NotFound, match="no such tunnel"):
                call()
    assert read(rig, view.tunnel) == (b"secret", False, "")


def test_the_supervisor_of_another_job_neither_gets_nor_reaches_a_tunnel(rig: Rig, running) -> None:
    _, node = running
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 1})
    foreign = NodeSide(rig, launch(rig, num))
    view = rig.client.tunnels.open(1, LS)
    assert foreign.waiting() == []
    node.waiting()
    assert foreign.read(view.tunnel).status_code == 404
    assert foreign.send(view.tunnel, 0, b"x").status_code == 404
    pretending = foreign.http.get(f"{NODE}/{view.tunnel}", params=node.key)
    assert pretending.status_code == 401  # the token is of its own attempt
    assert read(rig, view.tunnel) == (b"", False, "")


def test_a_supervisor_of_an_attempt_that_is_over_reaches_nothing(rig: Rig, running) -> None:
    supervisor, node = running
    view = rig.client.tunnels.open(1, LS)
    node.waiting()
    supervisor.ended()
    supervisor.leave()
    rig.turn()
    assert node.read(view.tunnel).status_code in (401, 403)
    data, over, why = read(rig, view.tunnel)
    assert (data, over, why) == (b"", True, "the attempt of the job is over")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"at": 0, "data": base64.b64encode(bytes(MAX_CHUNK_BYTES + 3)).decode()}, 422),
        ({"at": -1, "data": ""}, 422),
        ({"at": 2**63, "data": ""}, 422),
        ({"at": 0, "data": "not base64!"}, 400),
        ({"at": 0, "data": "eA=!="}, 400),  # a lenient decoder leaves the mark out
        ({"at": 7, "data": "eA=="}, 409),  # a gap
    ],
)
def test_transfers_of_a_wrong_size_form_or_place_are_refused(
    rig: Rig, running, body, status
) -> None:
    _, node = running
    view = rig.client.tunnels.open(1, LS)
    node.waiting()
    assert node.http.post(f"{NODE}/{view.tunnel}", json=body).status_code == status
    path = f"/api/v1/jobs/1/tunnels/{view.tunnel}"
    assert rig.client._http.post(path, json=body).status_code == status
    assert rig.client._http.get(path, params={"after": 9}).status_code == 409
    assert read(rig, view.tunnel) == (b"", False, "")


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "exec", "command": ["x" * ((1 << 17) + 1)]},
        {"kind": "exec", "command": ["x"] * 1001},
        {"kind": "exec", "command": ["a\0b"]},
        {"kind": "exec", "command": [""]},
        {"kind": "exec", "command": ["x"], "rank": -1},
        {"kind": "exec", "command": ["x"], "rows": 0},
        {"kind": "forward", "port": 0},
        {"kind": "forward", "port": 65536},
        {"kind": "shell", "command": ["x"]},
    ],
)
def test_requests_beyond_the_limits_are_refused(rig: Rig, running, wanted) -> None:
    _, node = running
    answer = rig.client._http.post("/api/v1/jobs/1/tunnels", json=wanted)
    assert answer.status_code == 422, answer.text
    assert node.waiting() == []


def test_a_tunnel_that_cannot_be_announced_counts_for_nothing(
    rig: Rig, running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Conflict("the ranks were restarted a moment ago", "try again")

    with monkeypatch.context() as patched:
        patched.setattr(routes, "announce", refuse)
        for _ in range(MAX_OF_JOB + 1):
            with pytest.raises(Conflict, match="restarted a moment ago"):
                rig.client.tunnels.open(1, LS)
    rig.client.tunnels.open(1, LS)


def test_a_process_has_a_most_number_of_tunnels_over_all_jobs() -> None:
    registry = TunnelRegistry(lambda: 0.0)
    purpose = LS.to_core()
    for number in range(MAX_TUNNELS):
        registry.open(NodeKey(1 + number // MAX_OF_JOB, 1, 0), "ada", purpose)
    with pytest.raises(TooManyRequests):
        registry.open(NodeKey(10**6, 1, 0), "ada", purpose)
    now = [0.0]
    registry = TunnelRegistry(lambda: now[0])
    for _ in range(MAX_OF_JOB):
        registry.open(NodeKey(1, 1, 0), "ada", purpose)
    now[0] = JOIN_WITHIN_S + 1  # no supervisor came: they are over, and count no more
    registry.open(NodeKey(1, 1, 0), "ada", purpose)
    now[0] += LINGER_S + 1
    assert registry.join(NodeKey(1, 1, 0)) == [] or len(registry._tunnels) == 1


KEY = NodeKey(1, 1, 0)


def joined(registry: TunnelRegistry) -> str:
    """A tunnel that its supervisor has joined."""
    made = registry.open(KEY, "ada", LS.to_core())
    assert registry.join(KEY) == [made]
    return made.id


def test_a_tunnel_that_its_client_has_closed_is_not_given_to_the_supervisor() -> None:
    registry = TunnelRegistry(lambda: 0.0)
    made = registry.open(KEY, "ada", LS.to_core())
    registry.close(made.id, 1, "ada", "closed by its client")
    assert registry.join(KEY) == []


def test_the_last_bytes_end_a_tunnel_only_when_all_are_taken_and_read() -> None:
    """The end comes with bytes for which the client has no room yet, and is sent again with the rest."""
    registry = TunnelRegistry(lambda: 0.0)
    tunnel, data = joined(registry), bytes(LIMIT_BYTES)
    assert registry.node_sends(tunnel, KEY, 0, data, over=False).at == LIMIT_BYTES
    assert registry.node_sends(tunnel, KEY, LIMIT_BYTES, b"end", over=True).at == LIMIT_BYTES
    assert registry.is_open(tunnel)
    assert not registry.client_reads(tunnel, 1, "ada", 0, 1 << 17).over
    assert registry.client_reads(tunnel, 1, "ada", LIMIT_BYTES, 1 << 17).data == b""
    assert registry.node_sends(tunnel, KEY, LIMIT_BYTES, b"end", over=True).at == LIMIT_BYTES + 3
    assert not registry.client_reads(tunnel, 1, "ada", LIMIT_BYTES, 1).over
    found = registry.client_reads(tunnel, 1, "ada", LIMIT_BYTES + 1, 9)
    assert (found.data, found.over) == (b"nd", True)


def test_ranks_that_were_restarted_meanwhile_get_no_request(rig: Rig, running) -> None:
    place, purpose = place_of(rig.platform, 1, 0), LS.to_core()
    older = replace(place, generation=place.generation - 1)
    with pytest.raises(Conflict, match="restarted a moment ago"):
        announce(rig.platform, older, purpose, rig.clock.now(), "ada")
    assert "tunnel_requested" not in [one.kind for one in rig.client.history(1)]


def test_a_node_that_does_not_run_any_more_gets_no_request(rig: Rig, running) -> None:
    place, purpose = place_of(rig.platform, 1, 0), LS.to_core()
    elsewhere = replace(place, node_rank=7)
    with pytest.raises(Conflict, match="rank 0 of j-1 does not run"):
        announce(rig.platform, elsewhere, purpose, rig.clock.now(), "ada")
