"""A generic fuzzer over the published schema: no request makes a server error.

The requests come from schemathesis, with the full models of specs, pools and projects. A sample of them is
changed by hand: a value is replaced by one that breaks parsers.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import socket
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.rig import TOKEN, URL, Rig, open_rig, spec
from integration.served import Served, served
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.wire import PROTOCOL
from support.waiting import wait_until

schemathesis = pytest.importorskip("schemathesis")

pytestmark = pytest.mark.integration
# Values that JSON, Python or a database hold, and the others do not.
HARD: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    -float("inf"),
    10**400,
    -(2**63) - 1,
    2**63,
    2**64,
    "\ud800",
    "a\0b",
    "",
    " ",
    "x" * 20_000,
    "1.." + "9" * 12,
    "9" * 400,
    [],
    {},
    None,
    True,
    -1,
    0,
    1e308,
    "٣",
    "\u202e",
    [[[[[[[[]]]]]]]],
    {"": {"": ""}},
    "NaN",
    "../../etc/passwd",
)
_FIXED = {"num": ("1", "2", "0", "99"), "name": ("local", "p", "default", "%00", "\u00e9")}


def operations() -> list[Any]:
    """Every operation of the published schema, with the strategy of its requests."""
    from fastapi import FastAPI

    from phalanx.server.openapi import add_routes

    app = FastAPI(
        title="Phalanx", separate_input_output_schemas=False, docs_url=None, redoc_url=None
    )
    add_routes(app)
    schema = schemathesis.openapi.from_dict(app.openapi())
    return [one.ok() for one in schema.get_all_operations()]


def changed(value: Any, rng: random.Random) -> Any:
    """A copy of a body with one value replaced by a hard one."""
    value = copy.deepcopy(value)
    here = value
    while isinstance(here, dict | list) and here:
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        below = here[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.3:
            here[key] = rng.choice(HARD)
            return value
        here = below
    return rng.choice(HARD)


@dataclass(frozen=True, slots=True)
class Sample:
    """What schemathesis made for one operation."""

    method: str
    path: str
    path_parameters: dict[str, Any]
    query: dict[str, Any]
    body: Any


def fitting(case: Sample, rng: random.Random) -> Any:
    """The body of a sample, made such that more of the program is reached than its first check."""
    body = copy.deepcopy(case.body)
    if not isinstance(body, dict):
        return body
    if case.path.endswith("/sync"):
        seq = rng.randrange(1, 10**6)
        reports = [one for one in body.get("reports") or [] if isinstance(one, dict)]
        reports = [{**one, "seq": seq + index} for index, one in enumerate(reports)]
        place = {"job": 1, "attempt": 1, "node_rank": 0, "protocol": PROTOCOL, "wait_s": 0}
        return {**body, **place, "reports": reports}
    if case.path.endswith("/jobs") and isinstance(body.get("spec"), dict):
        kept = {key: value for key, value in body["spec"].items() if rng.random() < 0.2}
        spec = {"run": "true", **kept, "schema": 1, "resources": {"nodes": 1}}
        return {"spec": spec, "owner": body.get("owner", "")}
    return body


def request_of(case: Sample, rng: random.Random) -> dict[str, Any]:
    """A request from a sample, changed at random; what HTTP cannot carry is left out."""
    path = case.path
    for name, value in case.path_parameters.items():
        shown = rng.choice(_FIXED[name]) if name in _FIXED and rng.random() < 0.7 else str(value)
        path = path.replace(f"{{{name}}}", shown.replace("/", "%2F").replace("?", "%3F"))
    query: list[tuple[str, str]] = []
    for key, value in case.query.items():
        for one in value if isinstance(value, list) else [value]:
            hard = rng.random() < 0.1
            query.append((str(key), str(rng.choice(HARD[6:]) if hard else one)))
    # Long polls are left out: they would make the run long.
    query = [(k, v.encode(errors="replace").decode()[:5000]) for k, v in query if k != "wait_s"]
    content: bytes | None = None
    if _is_json(case.body):
        body = fitting(case, rng) if rng.random() < 0.8 else case.body
        content = json.dumps(changed(body, rng) if rng.random() < 0.6 else body).encode()
        if rng.random() < 0.03:
            content = content[: rng.randrange(len(content) + 1)] + rng.randbytes(3)
    path = path.encode(errors="replace").decode()
    operation = (case.method, case.path)
    return {
        "operation": operation,
        "method": case.method,
        "path": path,
        "query": query,
        "content": content,
    }


def _is_json(body: Any) -> bool:
    return isinstance(body, dict | list | str | int | float | bool)


def send(http: httpx.Client, request: dict[str, Any], token: str) -> httpx.Response:
    return http.request(
        request["method"],
        request["path"],
        params=request["query"],
        content=request["content"],
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )


def samples(operation: Any, num: int) -> list[Sample]:
    """Up to `num` samples of one operation."""
    made: list[Sample] = []

    @settings(
        max_examples=num,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def gather(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        parameters, query = dict(case.path_parameters or {}), dict(case.query or {})
        made.append(Sample(case.method.upper(), case.path, parameters, query, case.body))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gather()
    return made


def cases(num: int, seed: int, num_samples: int) -> list[dict[str, Any]]:
    """`num` requests over all operations, those with a body most often.

    Each operation with a body has `num_samples` samples, which are changed again and again.
    """
    rng = random.Random(seed)
    todo = operations()
    made = [samples(one, num_samples if one.body else 5) for one in todo]
    weights = [6 if one.body else 1 for one in todo]
    return [request_of(rng.choice(one), rng) for one in rng.choices(made, weights, k=num)]


def _supervisor_token(rig: Rig) -> str:
    rig.submit()
    rig.turn()
    return rig.supervisor(1).token


def server_errors(answers: list[tuple[dict[str, Any], httpx.Response]]) -> list[str]:
    """The requests that made a server error, and the answers that are not of the one error model."""
    wrong = []
    for request, answer in answers:
        if answer.status_code >= 500 and answer.status_code != 503:
            wrong.append(f"{answer.status_code} {request}: {answer.text[:300]}")
        elif answer.status_code >= 400 and request["method"] != "HEAD":
            body = answer.json()
            if not (body["code"] and body["message"] and len(answer.content) < 100_000):
                wrong.append(f"{answer.status_code} {request}: {answer.text[:300]}")
    return wrong


@pytest.mark.extras
def test_no_request_makes_a_server_error(tmp_path: Path) -> None:
    num = 600
    with open_rig(tmp_path / "home") as rig:
        supervisor = _supervisor_token(rig)
        answers = []
        with httpx.Client(base_url=URL, transport=rig.transport) as http:
            for count, request in enumerate(cases(num, seed=1, num_samples=8)):
                token = supervisor if "/supervisors/" in request["path"] else TOKEN
                answers.append((request, send(http, request, token)))
                if count % 20 == 0:
                    rig.turn(1)  # what was accepted is planned, placed and started
    assert not server_errors(answers)
    kinds = Counter(answer.status_code for _, answer in answers)
    assert kinds[200] + kinds[201] > num / 20 and kinds[422] > num / 20, kinds


def broken_bytes(rng: random.Random) -> bytes:
    """Bytes that begin like a request and go wrong somewhere."""
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        'Content-Type: application/json\r\nContent-Length: 12\r\n\r\n{"spec": {}}'
    ).encode()
    kind = rng.randrange(9)
    if kind == 0:
        return rng.randbytes(rng.randrange(2000))
    if kind == 1:
        return head[: rng.randrange(len(head))]
    if kind == 2:
        return head * rng.randrange(2, 20)
    if kind == 3:
        return head.replace(b"Content-Length: 12", b"X: " + b"y" * rng.randrange(70_000))
    if kind == 4:
        size = rng.choice((b"zz", b"-1", b"f" * 20, b"5;" + b"x" * 5000, b"\0"))
        return head.replace(b"Content-Length: 12", b"Transfer-Encoding: chunked") + size + b"\r\n"
    if kind == 5:
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50)
    if kind == 6:
        at = rng.randrange(len(head))
        return head[:at] + rng.choice((b"\0", b"\r", b"\n", b"\xff", b"\r\n\r\n")) + head[at:]
    if kind == 7:
        return head.replace(b"12", str(rng.choice((-1, 10**6, 10**30))).encode())
    return b"".join(b"X%d: y\r\n" % n for n in range(rng.randrange(3000)))


def send_broken_bytes(here: Served, over: threading.Event, broken: Counter[str]) -> None:
    """Open connections that send malformed bytes until `over`, and count the answers by status."""
    rng = random.Random(2)
    while not over.is_set():
        stranger = here.connect()
        with stranger, contextlib.suppress(OSError):
            stranger.settimeout(30)
            stranger.sendall(broken_bytes(rng))
            stranger.shutdown(socket.SHUT_WR)
            while part := stranger.recv(65536):
                broken[part[9:12].decode("latin-1")] += part.startswith(b"HTTP/1.1 ")
        broken["connections"] += 1
        here.strangers.clear()


@pytest.mark.proof
def test_ten_thousand_requests_and_malformed_bytes_make_no_server_error() -> None:
    """Beside them a client asks ten times a second: the slow requests of its p99 take a second at most."""
    num = 10_000
    requests = cases(num, seed=time.time_ns(), num_samples=60)
    with tempfile.TemporaryDirectory(prefix="phx") as folder, served(Path(folder) / "home") as here:
        over, took, statuses = threading.Event(), [], Counter[int]()

        def watch() -> None:
            """A client beside the fuzzer."""
            paths = ("/healthz", "/api/v1/info", "/api/v1/jobs?limit=20", "/api/v1/pools")
            headers = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=here.url, headers=headers, timeout=120) as http:
                while not over.wait(0.1):
                    began = time.monotonic()
                    statuses[http.get(paths[len(took) % len(paths)]).status_code] += 1
                    took.append(time.monotonic() - began)

        broken: Counter[str] = Counter()
        with here.client() as client:
            client.submit(SubmitRequest(spec=spec()))
            wait_until(lambda: here.executor.started, "the first launch")
        (first, *_) = here.executor.started.values()
        beside = [
            threading.Thread(target=watch),
            threading.Thread(target=send_broken_bytes, args=(here, over, broken)),
        ]
        for one in beside:
            one.start()
        answers = []
        try:
            with httpx.Client(base_url=here.url, timeout=120) as http:
                for request in requests:
                    token = first.token if "/supervisors/" in request["path"] else TOKEN
                    answers.append((request, send(http, request, token)))
        finally:
            over.set()
            for one in beside:
                one.join()
    p99 = statistics.quantiles(took, n=100)[98]
    report(answers, broken, took, statuses)
    assert not server_errors(answers)
    assert set(statuses) == {200} and not any(key.startswith("5") for key in broken)
    assert p99 <= 1.0


def report(
    answers: list[tuple[dict[str, Any], httpx.Response]],
    broken: Counter[str],
    took: list[float],
    statuses: Counter[int],
) -> None:
    """Print the figures of docs/proof/fuzz.md."""
    kinds = Counter(answer.status_code for _, answer in answers)
    p99 = statistics.quantiles(took, n=100)[98]
    print(f"\n{len(answers)} requests from the schema, by status: {dict(sorted(kinds.items()))}")
    print(f"malformed bytes: {dict(broken)}")
    print(
        f"{len(took)} other requests meanwhile: statuses {dict(statuses)}, median "
        f"{statistics.median(took) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, longest {max(took):.2f} s"
    )
