"""What `phalanx doctor --server` says of the answers of a control plane."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from phalanx import __version__
from phalanx.cli.client.checkup import CheckResult
from phalanx.cli.client.server_checkup import ServerFacts, examine_server, judge
from phalanx.errors import PermissionDenied, StoreUnavailable, Unauthenticated
from phalanx.schemas.api.accounts import WhoAmIView
from phalanx.schemas.api.body import InfoView, ReadinessView, ReplicaView
from phalanx.schemas.api.credentials import TokenView
from phalanx.schemas.api.pools import PoolView
from phalanx.sdk import PhalanxClient

pytestmark = pytest.mark.unit
NOW = datetime(2026, 11, 25, tzinfo=UTC)
READY = ReadinessView(status="ready", checks={"database": "ok", "loops": "ok"})
INFO = InfoView(version=__version__, pid=1, home="/h", started_at=NOW, now=NOW, num_live_jobs=0)
ME = WhoAmIView(id="user:ada", token="t1", scopes=["read"], roles={}, permissions=[])
POOL = PoolView(name="gpu", num_nodes=2, num_slots=16, num_free=3, jobs=[])
WELL = ServerFacts("https://x", 0.01, NOW + timedelta(days=90), NOW, READY, ME, INFO, [POOL])


def found(facts: ServerFacts) -> dict[str, CheckResult]:
    return {one.subject: one for one in judge(facts)}


def test_a_control_plane_in_order_has_no_remedies() -> None:
    assert {one.verdict for one in judge(WELL)} == {"ok"}
    assert not [one.remedy for one in judge(WELL) if one.remedy]
    assert "3 of 16 slots free" in found(WELL)["pool gpu"].said


def replica(version: str) -> ReplicaView:
    return ReplicaView(name="a", role="standby", url="", version=version, started_at=NOW)


def expiring(days: int) -> WhoAmIView:
    one = TokenView(
        id="t1", name="ci", scopes=["read"], created_at=NOW, expires_at=NOW + timedelta(days=days)
    )
    return ME.model_copy(update={"credential": one})


@pytest.mark.parametrize(
    ("subject", "verdict", "changes"),
    [
        ("reachable", "warn", {"answer_s": 3.0}),
        ("certificate", "warn", {"certificate_ends_at": NOW + timedelta(days=3)}),
        ("certificate", "warn", {"certificate_ends_at": None}),
        ("token", "warn", {"me": expiring(2)}),
        ("token", "ok", {"me": expiring(20)}),
        ("database", "FAIL", {"ready": READY.model_copy(update={"checks": {"database": "away"}})}),
        ("leader", "FAIL", {"ready": READY.model_copy(update={"role": "standby"})}),
        (
            "leader",
            "ok",
            {"ready": READY.model_copy(update={"role": "standby", "leader": "b"})},
        ),
        ("version", "warn", {"info": INFO.model_copy(update={"version": "0.0.1"})}),
        (
            "replicas",
            "warn",
            {"info": INFO.model_copy(update={"replicas": [replica("1"), replica("2")]})},
        ),
        ("clock", "warn", {"now": NOW + timedelta(seconds=9)}),
        ("clock", "ok", {"info": INFO.model_copy(update={"clock_ahead_s": 0.0})}),
        ("storage", "FAIL", {"info": INFO.model_copy(update={"trouble": "the disk is full"})}),
        ("control plane", "warn", {"info": PermissionDenied("no")}),
        ("control plane", "FAIL", {"info": StoreUnavailable("away", "look at it")}),
        ("pools", "warn", {"pools": PermissionDenied("no")}),
        ("pools", "FAIL", {"pools": StoreUnavailable("away", "look at it")}),
        ("token", "FAIL", {"me": Unauthenticated("wrong", "another")}),
        ("pools", "FAIL", {"pools": []}),
        ("pool gpu", "FAIL", {"pools": [POOL.model_copy(update={"num_nodes": 0})]}),
        ("pool gpu", "warn", {"pools": [POOL.model_copy(update={"num_closed": 2})]}),
    ],
)
def test_each_fault_has_its_line(subject: str, verdict: str, changes: dict[str, object]) -> None:
    line = found(replace(WELL, **changes))[subject]
    assert line.verdict == verdict
    assert bool(line.remedy) == (verdict != "ok") or subject == "database"


def test_a_token_over_plain_http_on_this_machine_is_in_order() -> None:
    near = replace(WELL, url="http://127.0.0.1:8080", certificate_ends_at=None)
    assert found(near)["certificate"].verdict == "ok"


def test_a_server_that_does_not_answer_is_one_failed_check() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with PhalanxClient("http://x", "t", transport=httpx.MockTransport(refuse)) as client:
        (line,) = examine_server(client)
    assert (line.verdict, line.subject) == ("FAIL", "reachable")
