"""A client that leaves ends what the control plane does for it: every long poll and every stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from integration.rig import TOKEN, Rig, open_rig
from integration.test_control_posted_metrics import token_of
from integration.test_control_studies import OUTSIDE, RANDOM, Bench
from phalanx.core.tenancy.principals import HOME_USER
from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.server import gate as gate_module
from phalanx.server.app import create_app
from phalanx.server.context import Context
from phalanx.server.settings import ApiSettings, Settings
from phalanx.server.tunnels.registry import NodeKey

pytestmark = pytest.mark.integration
LONG = {"wait_s": "3600"}
OF_JOB = {"attempt": "1", "generation": "0", "request": "9"}
POLLS: dict[tuple[str, str], dict[str, str]] = {
    ("GET", "/api/v1/events"): {"after": "1000"},
    ("GET", "/api/v1/jobs/{num}/events"): {"after": "1000"},
    ("GET", "/api/v1/jobs/{num}/logs"): {},
    ("GET", "/api/v1/jobs/{num}/stacks"): OF_JOB,
    ("GET", "/api/v1/jobs/{num}/profiles"): OF_JOB,
    ("GET", "/api/v1/jobs/{num}/saves"): OF_JOB,
    ("GET", "/api/v1/studies/{num}/events"): {"after": "1000"},
    ("POST", "/api/v1/studies/{num}/ask"): {},
    ("POST", "/api/v1/supervisors/sync"): {},
    ("GET", "/api/v1/jobs/{num}/tunnels/{tunnel}"): {},
    ("GET", "/api/v1/supervisors/tunnels/{tunnel}"): {},
}
"""Every long poll, with a query that has nothing to wait for but time."""
STREAMS: dict[tuple[str, str], dict[str, str]] = {
    ("GET", "/api/v1/events/stream"): {},
    ("GET", "/api/v1/jobs/{num}/stream"): {"from": "now"},
}


@dataclass
class Leaver:
    """A request of a client that leaves when it is told."""

    app: Any
    method: str
    path: str
    query: dict[str, str]
    body: bytes = b""
    token: str = TOKEN
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[dict[str, Any]] = field(default_factory=list)
    begun: bool = False
    hold: asyncio.Event | None = None  # the body arrives when it is set

    def start(self) -> asyncio.Task[None]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": urlencode(self.query).encode(),
            "headers": [
                (b"host", b"127.0.0.1:1"),
                (b"authorization", f"Bearer {self.token}".encode()),
                (b"content-type", b"application/json"),
            ],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 1),
        }
        return asyncio.create_task(self.app(scope, self.receive, self.send))

    async def receive(self) -> dict[str, Any]:
        if not self.begun:
            self.begun = True
            if self.hold is not None:
                await self.hold.wait()
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110 (nothing tells of a subscription)
            await asyncio.sleep(0.005)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Rig]:
    """A control plane with a running job, and a study that nothing is suggested for."""
    settings = Settings(api=ApiSettings(max_wait_s=3600))
    with open_rig(tmp_path / "home", settings=settings) as rig:
        num = rig.submit()
        rig.turn()
        supervisor = rig.supervisor(num)
        supervisor.ready()
        supervisor.started()
        Bench(rig, lambda params, unit: 0.0).submit(search=RANDOM, **OUTSIDE)
        yield rig


def request_of(rig: Rig, method: str, route: str, query: dict[str, str]) -> Leaver:
    path = route.replace("{num}", "1")
    if route.endswith("/sync"):
        one = rig.supervisor(1)
        seen = one.sync().orders.version
        body = one.request(seen=seen, wait_s=3600).model_dump_json().encode()
        return Leaver(create_app(rig.context), method, path, {}, body, one.token)
    if "{tunnel}" in route:
        return tunnel_reader(rig, method, path, query)
    body = b'{"count": 1}' if method == "POST" else b""
    return Leaver(create_app(rig.context), method, path, query, body)


def tunnel_reader(rig: Rig, method: str, path: str, query: dict[str, str]) -> Leaver:
    """A request for the bytes of a tunnel through which nothing comes."""
    app, node = create_app(rig.context), NodeKey(1, 1, 0)
    purpose = TunnelPurpose(kind="exec", rank=0, command=("ls",))
    path = path.replace("{tunnel}", app.state.tunnels.open(node, HOME_USER.id, purpose).id)
    if "/supervisors/" not in path:
        return Leaver(app, method, path, query)
    app.state.tunnels.join(node)
    mine = {"job": "1", "attempt": "1", "node_rank": "0"}
    return Leaver(app, method, path, query | mine, token=rig.supervisor(1).token)


def is_open(context: Context) -> bool:
    return bool(context.notifier._waiting)


async def leave(context: Context, one: Leaver) -> None:
    """Wait until a request waits for news, leave, and see it end."""
    task = one.start()
    await until(lambda: is_open(context) or task.done())
    assert not task.done(), one.sent
    one.gone.set()
    async with asyncio.timeout(60):
        await task
    assert not is_open(context) and not context.presence.num_streams
    assert not context.presence.of_token and not context.presence.num_open


def test_every_long_poll_and_stream_is_listed(rig: Rig) -> None:
    document = create_app(rig.context).openapi()
    polls, streams = {("POST", "/api/v1/supervisors/sync")}, set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if any(one["name"] == "wait_s" for one in operation.get("parameters", ())):
                polls.add((method.upper(), path))
            if "text/event-stream" in json.dumps(operation):
                streams.add((method.upper(), path))
    assert (polls, streams) == (set(POLLS), set(STREAMS)), "add the new one to the test"


@pytest.mark.parametrize("route", [*POLLS, *STREAMS], ids=lambda one: " ".join(one))
def test_a_client_that_leaves_ends_its_request(waiting: Rig, route: tuple[str, str]) -> None:
    query = STREAMS[route] if route in STREAMS else POLLS[route] | LONG
    one = request_of(waiting, *route, query)
    waiting.transport._portal.call(leave, waiting.context, one)


def test_the_test_finds_a_poll_that_goes_on(waiting: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the watch for disconnects, the poll is still open after its client has left."""
    monkeypatch.setattr(gate_module, "RECEIVE", type("Nothing", (), {"set": lambda *_: None})())
    route = ("GET", "/api/v1/events")
    one = request_of(waiting, *route, POLLS[route] | LONG)

    async def left() -> bool:
        task = one.start()
        await until(lambda: is_open(waiting.context))
        one.gone.set()
        for _ in range(50):
            await asyncio.sleep(0)
        still = not task.done()
        waiting.context.notifier.close()
        await task
        return still

    assert waiting.transport._portal.call(left)


# -- requests of ranks ----------------------------------------------------------------------------


def test_requests_of_one_rank_are_counted(waiting: Rig) -> None:
    """A node may have a quarter of `max_requests_per_token` at a time; that of another job is served."""
    limit = waiting.context.settings.api.max_requests_per_token // 4
    presence = waiting.context.presence
    token = token_of(waiting.supervisor(1))
    app = create_app(waiting.context)

    def report(token: str = token) -> Leaver:
        return Leaver(app, "POST", "/api/v1/jobs/1/metrics", {}, b'{"points": []}', token)

    async def rush() -> tuple[list[int], list[int], int]:
        go = asyncio.Event()
        held = [report() for _ in range(limit)]
        for one in held:
            one.hold = go
        tasks = [one.start() for one in held]
        await until(lambda: sum(presence.of_token.values()) == limit)
        others = [report(), report(token[:-1])]
        for one in others:
            await one.start()
        open_ones = presence.num_open
        go.set()
        await asyncio.gather(*tasks)
        statuses = [[one.sent[0]["status"] for one in some] for some in (held, others)]
        return statuses[0], statuses[1], open_ones

    served, others, open_ones = waiting.transport._portal.call(rush)
    assert served == [200] * limit
    assert others == [429, 401], "one more of the same token, and one of another"
    assert open_ones == 0, "a rank is no client that keeps an embedded server up"
    assert not presence.of_token
