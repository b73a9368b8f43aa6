"""A generic fuzzer over the published schema: no request makes a server error.

The requests come from schemathesis, with the full models of specs, pools and projects. A sample of them is
changed by hand: a value is replaced by one that breaks parsers.
"""

from __future__ import annotations

import copy
import json
import os
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.rig import TOKEN, URL, Rig, open_rig

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

    app = FastAPI(title="Phalanx", separate_input_output_schemas=False)
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


def request_of(case: Any, rng: random.Random) -> dict[str, Any]:
    """The request of a case, some of them changed; what HTTP cannot carry is left out."""
    path = case.path
    for name, value in (case.path_parameters or {}).items():
        shown = rng.choice(_FIXED[name]) if name in _FIXED and rng.random() < 0.7 else str(value)
        path = path.replace(f"{{{name}}}", shown.replace("/", "%2F").replace("?", "%3F"))
    query: list[tuple[str, str]] = []
    for key, value in (case.query or {}).items():
        for one in value if isinstance(value, list) else [value]:
            hard = rng.random() < 0.1
            query.append((str(key), str(rng.choice(HARD[6:]) if hard else one)))
    query = [(k, v.encode(errors="replace").decode()[:5000]) for k, v in query if k != "wait_s"]
    body = case.body
    content: bytes | None = None
    if body is not None and not isinstance(body, type(schemathesis)) and _is_json(body):
        if rng.random() < 0.5:
            body = changed(body, rng)
        content = json.dumps(body).encode()
        if rng.random() < 0.03:
            content = content[: rng.randrange(len(content) + 1)] + os.urandom(3)
    path = path.encode(errors="replace").decode()
    return {"method": case.method.upper(), "path": path, "query": query, "content": content}


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


def gathered(operation: Any, num: int, rng: random.Random) -> list[dict[str, Any]]:
    """Up to `num` requests of one operation."""
    made: list[dict[str, Any]] = []

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
        made.append(request_of(data.draw(operation.as_strategy()), rng))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gather()
    return made


def cases(num: int, seed: int) -> Iterator[dict[str, Any]]:
    """About `num` requests over all operations, those with a body most often."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = []
    todo = operations()
    weights = [6 if one.body else 1 for one in todo]
    for operation, weight in zip(todo, weights, strict=True):
        share = max(2, round(num * weight / sum(weights)))
        made = gathered(operation, share, rng)
        # Operations without parameters have one request only.
        found += made * max(1, share // max(1, len(made)))
    rng.shuffle(found)
    yield from found


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
@pytest.mark.parametrize("num", [400])
def test_no_request_makes_a_server_error(tmp_path: Path, num: int) -> None:
    with open_rig(tmp_path / "home") as rig:
        supervisor = _supervisor_token(rig)
        answers = []
        with httpx.Client(base_url=URL, transport=rig.transport) as http:
            for count, request in enumerate(cases(num, seed=1)):
                token = supervisor if "/supervisors/" in request["path"] else TOKEN
                answers.append((request, send(http, request, token)))
                if count % 20 == 0:
                    rig.turn(1)  # what was accepted is planned, placed and started
    assert not server_errors(answers)
    kinds = Counter(answer.status_code for _, answer in answers)
    assert kinds[200] + kinds[201] > num / 20 and kinds[422] > num / 20, kinds
