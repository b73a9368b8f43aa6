"""Every method of the client calls a route that the server has."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI

from phalanx.errors import ServerUnavailable
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.telemetry import ProfileRequest, RequestTicket
from phalanx.sdk import PhalanxClient
from phalanx.server.routers import jobs, platform, resources, telemetry, tokens

pytestmark = pytest.mark.unit
TICKET = RequestTicket(attempt=1, generation=0, request=2)
CALLS: dict[str, Callable[[PhalanxClient], object]] = {
    "info": lambda c: c.info(),
    "hello": lambda c: c.hello(),
    "has_code": lambda c: c.has_code("a" * 64),
    "put_code": lambda c: c.put_code("a" * 64, b""),
    "submit": lambda c: c.submit(SubmitRequest(spec={"run": "x"}), dry_run=True),
    "jobs": lambda c: c.jobs(states=("running",), labels={"a": "b"}),
    "job": lambda c: c.job(1),
    "events": lambda c: c.events(1, after=3),
    "history": lambda c: list(c.history(1)),
    "logs": lambda c: c.logs(1, ranks=(0,), stream="err", tail=5),
    "metrics": lambda c: c.metrics(1, names=("loss",)),
    "checkpoints": lambda c: c.checkpoints(1),
    "ask_stacks": lambda c: c.ask_stacks(1),
    "stacks": lambda c: c.stacks(1, asked=TICKET),
    "ask_profile": lambda c: c.ask_profile(1, ProfileRequest()),
    "profiles": lambda c: c.profiles(1, asked=TICKET),
    "stop": lambda c: c.stop(1, goal="pause"),
    "resume": lambda c: c.resume(1),
    "pools": lambda c: c.pools(),
    "pool": lambda c: c.pool("a"),
    "apply_pools": lambda c: c.apply_pools({}),
    "remove_pool": lambda c: c.remove_pool("a"),
    "nodes": lambda c: c.nodes("a"),
    "node": lambda c: c.node("a"),
    "drain": lambda c: c.drain("a", jobs="move"),
    "undrain": lambda c: c.undrain("a"),
    "projects": lambda c: c.projects(),
    "project": lambda c: c.project("a"),
    "apply_projects": lambda c: c.apply_projects({}),
    "remove_project": lambda c: c.remove_project("a"),
    "why": lambda c: c.why(1),
    "tokens": lambda c: c.tokens(),
    "create_token": lambda c: c.create_token("a", ["read"]),
    "rotate_token": lambda c: c.rotate_token("a"),
    "revoke_token": lambda c: c.revoke_token("a"),
    "login_link": lambda c: c.login_link(),
    "end_sessions": lambda c: c.end_sessions(),
}


def routes() -> dict[tuple[str, str], set[str]]:
    """Method and path pattern of every route, with the names of its query parameters."""
    app = FastAPI()
    for module in (jobs, telemetry, resources, platform, tokens):
        app.include_router(module.router)
    found = {}
    for path, methods in app.openapi()["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", path)
        for method, route in methods.items():
            names = {one["name"] for one in route.get("parameters", ()) if one["in"] == "query"}
            found[method.upper(), pattern] = names
    return found


def request_of(name: str) -> httpx.Request:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        raise httpx.ConnectError("no server")

    client = PhalanxClient("http://x", "t", transport=httpx.MockTransport(answer))
    with client, pytest.raises(ServerUnavailable):
        CALLS[name](client)
    return seen[0]


def test_the_table_names_every_method() -> None:
    methods = {name for name in dir(PhalanxClient) if not name.startswith("_")}
    assert methods - set(CALLS) == {"close", "is_healthy"}


@pytest.mark.parametrize("name", CALLS)
def test_the_route_and_its_parameters_exist(name: str) -> None:
    request = request_of(name)
    names = [
        names
        for (method, pattern), names in routes().items()
        if method == request.method and re.fullmatch(pattern, request.url.path)
    ]
    assert names, f"{request.method} {request.url.path} is no route"
    assert set(request.url.params) <= set().union(*names)
    assert request.headers["Authorization"] == "Bearer t"
