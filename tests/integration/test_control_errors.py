"""Every route answers every error with one body: a walk over the route table."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig, open_rig, sample_path
from phalanx.core.contract.access import Scope
from phalanx.core.tenancy.roles import SCOPES
from phalanx.errors import (
    Bug,
    Conflict,
    ExecutorUnavailable,
    NotFound,
    PermissionDenied,
    PlatformError,
    PreconditionFailed,
    ServerError,
    SpecInvalid,
    StorageFull,
    StoreUnavailable,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
)
from phalanx.schemas.api.body import ErrorView
from phalanx.server.access import AccessTable
from phalanx.server.app import create_app
from phalanx.server.gate import Gate
from phalanx.server.settings import ApiSettings, Settings
from phalanx.services.lifecycle import code
from support.asgi import asgi_transport

pytestmark = pytest.mark.integration
GOOD = {"Authorization": f"Bearer {TOKEN}"}
# The routes that need no part of the control plane.
PARTLESS = {
    ("GET", "/openapi.json"),
    ("HEAD", "/openapi.json"),
    *(("GET", path) for path in ("/", "/ui", "/ui/", "/ui/{name}")),  # files of the package
}
RAISED: list[Exception] = [
    NotFound("no"),
    Conflict("no"),
    PreconditionFailed("no"),
    TooLarge("no"),
    TooManyRequests("no"),
    SpecInvalid([]),
    Unauthenticated("no"),
    PermissionDenied("no"),
    ServerError("no"),
    StoreUnavailable("no"),
    ExecutorUnavailable("no"),
    Bug("no"),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EIO, os.strerror(errno.EIO)),
    ZeroDivisionError("no"),
]


def fault_of(answer: httpx.Response, *, method: str = "GET") -> str:
    """What is not right with the body of an error; empty when nothing is."""
    if answer.status_code < 400:
        return f"{answer.status_code} is no error"
    if method == "HEAD" and not answer.content:
        return ""
    if answer.headers.get("content-type") != "application/json":
        return f"{answer.status_code} with {answer.headers.get('content-type')}: {answer.text[:80]}"
    body = answer.json()
    if set(body) != set(ErrorView.model_fields) or not isinstance(body["retryable"], bool):
        return f"{answer.status_code} with the keys {sorted(body)}"
    if not body["code"] or (not body["message"] and body["code"] != "spec_invalid"):
        return f"{answer.status_code} without a code or a message"
    waits = answer.status_code in (429, 503) and body["retryable"]
    if waits != ("Retry-After" in answer.headers):
        return f"{answer.status_code} with Retry-After {answer.headers.get('Retry-After')}"
    if (answer.status_code == 401) != ("WWW-Authenticate" in answer.headers):
        return f"{answer.status_code} without WWW-Authenticate"
    return ""


def table(rig: Rig) -> AccessTable:
    return AccessTable(create_app(rig.context).routes)


def send(rig: Rig, method: str, path: str, headers: dict[str, str], **rest: Any) -> httpx.Response:
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        return http.request(method, path, headers=headers, **rest)


def walk(
    rig: Rig, status: int, ask: Callable[[str, str], httpx.Response], *, but: object = ()
) -> list[tuple[str, str, str]]:
    """Every route whose answer is not an error of this status with the one body."""
    wrong = []
    for method, path in table(rig).of_route:
        if (method, path) in but or path in but:  # type: ignore[operator]
            continue
        answer = ask(method, path)
        fault = fault_of(answer, method=method)
        if not fault and answer.status_code != status:
            fault = f"{answer.status_code}, not {status}: {answer.text[:80]}"
        if fault:
            wrong.append((method, path, fault))
    return wrong


def open_paths(rig: Rig) -> set[str]:
    return {path for (_, path), one in table(rig).of_route.items() if not one.needs_caller}


def test_a_missing_token_a_foreign_host_and_a_scope_that_is_too_small(rig: Rig) -> None:
    def plain(method: str, path: str) -> httpx.Response:
        return send(rig, method, sample_path(path), {})

    assert walk(rig, 401, plain, but=open_paths(rig)) == []
    foreign = GOOD | {"Host": "evil.example"}
    assert walk(rig, 403, lambda m, p: send(rig, m, sample_path(p), foreign)) == []
    token = rig.client.create_token("scraper", [Scope.METRICS]).token
    small = {"Authorization": f"Bearer {token}"}
    reaches = {
        key for key, one in table(rig).of_route.items() if SCOPES[one.permission] is Scope.METRICS
    }
    but = open_paths(rig) | reaches
    assert walk(rig, 403, lambda m, p: send(rig, m, sample_path(p), small), but=but) == []


def test_what_is_not_there_and_what_no_route_answers(rig: Rig) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        for path in ("/api/v1/nothing", "/nothing", "/api/v1/jobs/1/nothing"):
            assert fault_of(send(rig, method, path, GOOD)) == ""
    wrong = [
        (method, path)
        for _, path in table(rig).of_route
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if (method, path) not in table(rig).of_route
        and fault_of(answer := send(rig, method, sample_path(path), GOOD))
        and answer.status_code >= 400
    ]
    assert wrong == []
    numbers = [key for key in table(rig).of_route if "{num}" in key[1]]
    assert len(numbers) > 25
    for method, path in numbers:
        answer = send(rig, method, sample_path(path.replace("{num}", "999")), GOOD, json={})
        assert fault_of(answer, method=method) == "", (method, path)


def test_a_body_that_is_too_large_or_no_json(rig: Rig) -> None:
    large = GOOD | {"Content-Length": str(1 << 40)}
    uncounted = {"/api/v1/code/{digest}", "/api/v1/supervisors/sync"}
    asked = lambda m, p: send(rig, m, sample_path(p), large, content=b"{}")  # noqa: E731
    assert walk(rig, 413, asked, but=uncounted) == []
    document = create_app(rig.context).openapi()
    bodies = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        if "application/json" in one.get("requestBody", {}).get("content", {})
    }
    assert len(bodies) > 25
    others = set(table(rig).of_route) - bodies
    for content in (b"{", b"[]", b"1", b'{"spce": 1}', b'{"a": NaN}', b"\xff"):
        asked = lambda m, p, c=content: send(rig, m, sample_path(p), GOOD, content=c)  # noqa: E731
        but = others | {"/api/v1/supervisors/sync"}  # it wants a token of its own first
        wrong = walk(rig, 422, asked, but=but)
        assert wrong == [], content


def test_chunked_bodies_and_too_many_requests(tmp_path: Path) -> None:
    api = ApiSettings(max_body_bytes=1000, max_requests_per_token=4)

    def chunks() -> Iterator[bytes]:
        yield from (b" " * 100 for _ in range(100))

    with open_rig(tmp_path / "home", settings=Settings(api=api)) as rig:
        for method, path in table(rig).of_route:
            answer = send(rig, method, sample_path(path), GOOD, content=chunks())
            if answer.status_code >= 400:
                assert fault_of(answer, method=method) == "", (method, path)
        token = rig.client.create_token("t", [Scope.ADMIN]).token
        caller = next(iter(rig.client.tokens()))
        busy = {"Authorization": f"Bearer {token}"}
        for changes in (False, True):
            rig.context.presence.of_token[caller.id, changes] = 4
        assert (
            walk(rig, 429, lambda m, p: send(rig, m, sample_path(p), busy), but=open_paths(rig))
            == []
        )


@pytest.mark.parametrize("raised", RAISED, ids=lambda one: f"{type(one).__name__}-{one}"[:40])
def test_an_error_of_any_route_has_the_one_body(rig: Rig, raised: Exception) -> None:
    app = create_app(rig.context)

    class Broken:
        """The parts of a control plane of which none can be had."""

        def __getattr__(self, name: str) -> object:
            raise raised

    app.state = Broken()  # type: ignore[assignment]
    status = raised.http_status if isinstance(raised, PlatformError) else 500
    if isinstance(raised, OSError) and raised.errno == errno.ENOSPC:
        status = StorageFull.http_status
    with asgi_transport(app) as transport, httpx.Client(base_url=URL, transport=transport) as http:

        def ask(method: str, path: str) -> httpx.Response:
            bearer = rig_token if path == "/api/v1/supervisors/sync" else TOKEN
            headers = {"Authorization": f"Bearer {bearer}"}
            return http.request(method, sample_path(path), headers=headers, content=b"{}")

        rig.submit()
        rig.turn()
        rig_token = rig.supervisor(1).token
        assert walk(rig, status, ask, but=PARTLESS) == []


def test_every_route_of_the_document_names_the_body_of_errors(rig: Rig) -> None:
    document = create_app(rig.context).openapi()
    shape = {"$ref": "#/components/schemas/ErrorView"}
    missing = [
        (method, path, code)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        for code in ("4XX", "5XX")
        if one["responses"]
        .get(code, {})
        .get("content", {})
        .get("application/json", {})
        .get("schema")
        != shape
    ]
    assert missing == [] or missing == [("get", "/openapi.json", code) for code in ("4XX", "5XX")]


def test_the_walk_finds_a_body_of_another_shape(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: Gate, scope: Any, receive: Any, send_: Any) -> None:
        await send_({"type": "http.response.start", "status": 401, "headers": []})
        await send_({"type": "http.response.body", "body": b'{"detail": "no"}'})

    monkeypatch.setattr(Gate, "__call__", refuse)
    wrong = walk(rig, 401, lambda m, p: send(rig, m, sample_path(p), {}))
    bodiless = {key for key in table(rig).of_route if key[0] == "HEAD"}
    assert len(wrong) == len(table(rig).of_route) - len(bodiless) > 100


class FullDisk:
    """A file on a disk that has no space left."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, chunk: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_code_that_does_not_fit_on_the_disk_is_refused_and_nothing_is_left(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = code.CodeUpload.__init__

    def full(self: code.CodeUpload, *given: Any) -> None:
        made(self, *given)
        self._file = FullDisk(self._file)  # type: ignore[assignment]

    monkeypatch.setattr(code.CodeUpload, "__init__", full)
    answer = send(rig, "PUT", f"/api/v1/code/{'0' * 64}", GOOD, content=b"a" * 100)
    assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
    folder = rig.platform.home.code_dir
    assert f"the disk of {folder} on the control plane is full" in answer.json()["message"]
    assert answer.json()["retryable"] and answer.json()["hint"]
    assert list(folder.iterdir()) == []
    with pytest.raises(StorageFull, match="the code cannot be stored"):
        rig.client.put_code("1" * 64, b"a")
    monkeypatch.setattr(code.CodeUpload, "__init__", made)
    answer = send(rig, "PUT", f"/api/v1/code/{'0' * 64}", GOOD, content=b"a")
    assert answer.status_code == 400, "it is tried again with space: only the digest is wrong"


def test_a_token_of_the_home_that_does_not_fit_on_the_disk(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/token")

    monkeypatch.setattr("phalanx.services.resources.credentials.write_file", full)
    with pytest.raises(StorageFull, match="cannot write /home/token: its disk is full"):
        rig.client.rotate_token("admin")
    assert rig.client.info().home, "the old token is valid"
