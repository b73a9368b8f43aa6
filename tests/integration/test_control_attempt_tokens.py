"""The token of an attempt does what a supervisor must and nothing else: every route, every such token."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.rig import URL, Rig, ScriptedSupervisor, open_rig, sample_path, spec
from phalanx.executors.protocol import SupervisorRef
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.server.access import AccessTable, Of
from phalanx.server.app import create_app
from phalanx.server.gate import Gate
from phalanx.services.lifecycle import sync
from phalanx.store import events

pytestmark = pytest.mark.integration
VALUE = "correct-horse-battery-staple"
SMALL = {"slots_per_node": 1}


@dataclass
class Tokens:
    """A job in its second attempt, and another job."""

    rig: Rig
    live: ScriptedSupervisor  # the attempt that requests are about
    old: ScriptedSupervisor  # the first attempt of the same job
    other: ScriptedSupervisor  # of another job
    digest: str

    def token(self, holder: str) -> str:
        one: ScriptedSupervisor = getattr(self, holder)
        return one.token


def archive() -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        header = tarfile.TarInfo("train.py")
        header.size = 4
        tar.addfile(header, io.BytesIO(b"pass"))
    return found.getvalue()


def prepared(rig: Rig) -> Tokens:
    rig.client.secrets.set("DB_PASS", VALUE)
    code = archive()
    digest = hashlib.sha256(code).hexdigest()
    rig.client.put_code(digest, code)
    nums = []
    for name in ("one", "two"):
        body = spec(name=name, resources=SMALL, secrets=["DB_PASS"])
        view = rig.client.submit(SubmitRequest(spec=body, owner="ada", code=digest)).job
        assert view is not None
        nums.append(view.num)
    rig.turn()
    old = rig.supervisor(nums[0])
    old.ready()
    rig.executor.bury(SupervisorRef(nums[0], 1, 0))
    rig.turn()
    rig.turn(60)
    return Tokens(rig, rig.supervisor(nums[0], attempt=2), old, rig.supervisor(nums[1]), digest)


# A request of each route for supervisors, about the live attempt. A new route of this kind needs an entry.
Request = Callable[[Tokens], dict[str, Any]]
# Routes for ranks: their token is derived from that of the attempt, which does not open them.
OF_RANKS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/api/v1/jobs/{num}/metrics"): {"points": []},
    ("POST", "/api/v1/jobs/{num}/trainer-status"): {"trainerStatus": {}},
}


def _asked(tokens: Tokens) -> dict[str, int]:
    ref = tokens.live.ref
    return {"job": ref.job, "attempt": ref.attempt, "node_rank": ref.node_rank}


def _sync(tokens: Tokens) -> dict[str, Any]:
    return {"json": tokens.live.request().model_dump(mode="json")}


def _query(tokens: Tokens) -> dict[str, Any]:
    return {"params": _asked(tokens)}


def _bytes(tokens: Tokens) -> dict[str, Any]:
    return {"params": _asked(tokens), "json": {"at": 0, "data": ""}}


REQUESTS: dict[tuple[str, str], Request] = {
    # In the order of a start: secrets are sent until the first sync call.
    ("GET", "/api/v1/supervisors/secrets"): _query,
    ("GET", "/api/v1/supervisors/code/{digest}"): _query,
    ("POST", "/api/v1/supervisors/sync"): _sync,
    ("GET", "/api/v1/supervisors/tunnels"): _query,
    ("GET", "/api/v1/supervisors/tunnels/{tunnel}"): _query,
    ("POST", "/api/v1/supervisors/tunnels/{tunnel}"): _bytes,
}


def faults(tokens: Tokens, holders: list[str]) -> list[tuple[str, ...]]:
    """Every answer that is not the one of the rule."""
    table = AccessTable(create_app(tokens.rig.context).routes).of_route
    assert {route for route, one in table.items() if one.of is Of.ATTEMPT} == {*REQUESTS, *OF_RANKS}
    order = [*(route for route in table if route not in REQUESTS), *REQUESTS]
    wrong = []
    with httpx.Client(base_url=URL, transport=tokens.rig.transport) as http:
        for holder in holders:
            headers = {"Authorization": f"Bearer {tokens.token(holder)}"}
            for method, path in order:
                access = table[method, path]
                if access.of is Of.OPEN:
                    continue
                filled = sample_path(path.replace("{digest}", tokens.digest))
                filled = filled.replace("{num}", str(tokens.live.ref.job))
                given = REQUESTS.get((method, path), lambda _: {})(tokens)
                if not given and method not in ("GET", "HEAD", "DELETE"):
                    given = {"json": OF_RANKS.get((method, path), {})}
                got = http.request(method, filled, headers=headers, **given)
                expected = 401
                if (method, path) in REQUESTS and holder == "live":
                    # There is no tunnel.
                    expected = 404 if "{tunnel}" in path else 200
                if got.status_code != expected or (expected != 200 and VALUE in got.text):
                    wrong.append((holder, method, path, str(got.status_code)))
    return wrong


def test_every_route_with_the_token_of_the_attempt_of_another_job_and_of_an_earlier_attempt(
    rig: Rig,
) -> None:
    tokens = prepared(rig)
    nums = [tokens.live.ref.job, tokens.other.ref.job]

    def log() -> list[Any]:
        found = [
            rig.store.view(lambda tx, num=num: events.of_job(tx, num, after=0, limit=999))
            for num in nums
        ]
        return [one for some in found for one in some]

    before = log()
    assert faults(tokens, ["other", "old"]) == []
    assert log() == before, "a refused call changes nothing"
    assert faults(tokens, ["live"]) == []


def test_what_the_right_token_cannot_do(rig: Rig) -> None:
    tokens = prepared(rig)
    live, old = tokens.live, tokens.old
    with httpx.Client(base_url=URL, transport=rig.transport) as http:

        def ask(path: str, one: ScriptedSupervisor, **changed: Any) -> int:
            ref = one.ref
            asked = {"job": ref.job, "attempt": ref.attempt, "node_rank": ref.node_rank}
            headers = {"Authorization": f"Bearer {one.token}"}
            url = f"/api/v1/supervisors/{path}"
            return http.get(url, params=asked | changed, headers=headers).status_code

        assert ask("secrets", live, node_rank=1) == 401, "a node that the attempt does not have"
        assert ask("code/" + "0" * 64, live) == 403, "code of another job"
        # An attempt that is over: it may deliver reports, and reads nothing more.
        assert ask("secrets", old) == 403 and ask(f"code/{tokens.digest}", old) == 403
        orders = old.sync().orders
        assert orders.action == "release"
        live.ready()
        assert ask("secrets", live) == 403, "secrets are sent to a supervisor that starts"
        assert ask(f"code/{tokens.digest}", live) == 200
        rig.client.stop(live.ref.job, goal="cancel")
        rig.executor.bury(live.ref)
        rig.turn(60)
        assert rig.job(live.ref.job).is_terminal
        assert ask(f"code/{tokens.digest}", live) == 403
        rig.turn(25 * 3600)
        assert live.post(live.request()).status_code == 401, "a day after the end of the job"


@pytest.mark.parametrize("guard", ["the service", "the gate"])
def test_the_table_finds_a_guard_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    with open_rig(tmp_path / "home") as rig:
        tokens = prepared(rig)
        if guard == "the service":
            monkeypatch.setattr(sync, "_authenticate", lambda known, token: None)
            found = {one[2] for one in faults(tokens, ["other"])}
            assert found == {path for _, path in REQUESTS}
        else:
            monkeypatch.setattr(Gate, "_is_admin", lambda self, shown: True)
            assert len(faults(tokens, ["live"])) > 50
