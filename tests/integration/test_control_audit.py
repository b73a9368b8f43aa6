"""The audit log: what did what, from where, before and after; append-only, bounded, without secrets."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import text

from integration.rig import TOKEN, URL, Rig, spec
from phalanx.core.contract.access import Scope
from phalanx.core.tenancy.audit_limits import DENIED_IN_ALL, DENIED_PER_CALLER, AuditLimits
from phalanx.errors import NotFound, PermissionDenied, PlatformError, Unauthenticated
from phalanx.schemas.api.audit import AuditEntryView
from phalanx.schemas.api.jobs import ChangeRequest, SubmitRequest
from phalanx.sdk import PhalanxClient
from phalanx.store.database import Tx
from phalanx.store.tables import audit_log

pytestmark = pytest.mark.integration
SECRET = "hunter2-hunter2-hunter2"


def entries(rig: Rig, **wanted: str) -> list[AuditEntryView]:
    return list(rig.client.accounts.audit(**wanted))  # type: ignore[arg-type]


def client_of(rig: Rig, token: str) -> PhalanxClient:
    return PhalanxClient(URL, token, transport=rig.transport)


def test_every_change_has_what_did_it_from_where_and_what_was_before_and_after(rig: Rig) -> None:
    accounts = rig.client.accounts
    accounts.add("ada")
    accounts.grant("user:ada", "member", "vision")
    accounts.grant("user:ada", "operator", "vision")
    made = rig.client.create_token("laptop", [Scope.SUBMIT], principal="user:ada")
    with client_of(rig, made.token) as ada:
        job = ada.submit(SubmitRequest(spec=spec(project="vision", env={"API_TOKEN": SECRET}))).job
        assert job is not None
        ada.change(job.num, ChangeRequest(priority=70))
        ada.stop(job.num, goal="cancel")
    rig.client.set_scheduler_policy("fair")
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "text"}]})
    hers = entries(rig, actor="user:ada")
    assert [one.action for one in reversed(hers)] == [
        "POST /api/v1/jobs",
        "PATCH /api/v1/jobs/{num}",
        "POST /api/v1/jobs/{num}/stop",
    ]
    assert {(one.credential, one.outcome, bool(one.address)) for one in hers} == {
        (made.view.id, "changed", True)
    }
    submitted, changed, stopped = (one.changes[0] for one in reversed(hers))
    assert submitted.before is None and submitted.after["owner"] == "ada"
    assert (changed.what, changed.before["priority"], changed.after["priority"]) == (
        "job j-1",
        50,
        70,
    )
    assert (stopped.before["state"], stopped.after["state"]) == ("queued", "cancelled")
    grants = entries(rig, action="grants")
    assert [(one.changes[0].before, one.changes[0].after) for one in grants] == [
        ("member", "operator"),
        (None, "member"),
    ]
    assert entries(rig, target="/api/v1/scheduler")[0].changes[0].after == "fair"
    assert entries(rig, target="/api/v1/projects")[0].changes[0].what == "projects text"
    shown = str([one.model_dump() for one in entries(rig)])
    assert SECRET not in shown and made.token not in shown and TOKEN not in shown
    ids = [one.id for one in entries(rig)]
    assert ids == sorted(ids, reverse=True) and len(set(ids)) == len(ids)


def test_what_fails_or_changes_nothing_has_no_row_of_a_change(rig: Rig) -> None:
    with pytest.raises(NotFound):
        rig.client.accounts.remove("user:unknown")
    with pytest.raises(PlatformError):
        rig.client.submit(SubmitRequest(spec={}))
    rig.client.submit(SubmitRequest(spec=spec()), dry_run=True)
    assert entries(rig) == []


def test_reads_of_logs_artifacts_and_secrets(rig: Rig) -> None:
    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    for _ in range(3):
        rig.client.logs(num)
    rig.client.checkpoints(num)
    rig.client.job(num)
    found = entries(rig, outcome="read")
    assert [one.target for one in found] == ["/api/v1/jobs/1/checkpoints", "/api/v1/jobs/1/logs"]
    rig.clock.advance(61)
    rig.client.logs(num)
    assert len(entries(rig, outcome="read")) == 3
    bearer = {"Authorization": f"Bearer {supervisor.token}"}
    asked = {"job": num, "attempt": 1, "node_rank": 0}
    with httpx.Client(base_url=URL, transport=rig.transport, headers=bearer) as http:
        http.get("/api/v1/supervisors/secrets", params=asked)
    newest = entries(rig, outcome="read")[0]
    assert newest.actor == "supervisor" and "job=1&attempt=1" in newest.target
    assert supervisor.token not in str(newest)


def test_denied_requests_are_written_with_a_limit_for_each_caller(rig: Rig) -> None:
    rig.client.accounts.add("eve")
    token = rig.client.create_token("hers", [Scope.ADMIN], principal="user:eve").token
    with client_of(rig, token) as eve, client_of(rig, "phx_wrong_token") as unknown:
        for _ in range(DENIED_PER_CALLER + 5):
            with pytest.raises(PermissionDenied):
                eve.accounts.audit().__next__()
        with pytest.raises(Unauthenticated):
            unknown.jobs()
        rig.client.job(rig.submit())
    found = entries(rig, outcome="denied")
    assert [one.actor for one in found].count("user:eve") == DENIED_PER_CALLER
    assert found[0].actor == "" and found[0].target == "/api/v1/jobs"
    assert "phx_wrong" not in str(found)


def test_limits_hold_for_any_number_of_callers() -> None:
    limits = AuditLimits()
    assert (
        sum(limits.permits_denied(f"10.0.{n}", 0) for n in range(DENIED_IN_ALL + 50))
        == DENIED_IN_ALL
    )
    assert limits.permits_denied("10.0.1", 3600 * 1_000_000)
    for n in range(20_000):
        limits.permits_read((str(n),), 0)
    assert len(limits._reads) == 10_000


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor = 'user:other'",
        "DELETE FROM audit_log",
        "DELETE FROM audit_log WHERE id = 1",
    ],
)
def test_the_database_refuses_to_change_or_remove_a_row(rig: Rig, statement: str) -> None:
    rig.client.accounts.add("ada")

    def tamper(tx: Tx) -> None:
        tx.conn.execute(text(statement))

    with pytest.raises(PlatformError, match="append-only"):
        rig.store.transact(tamper)
    rows = rig.store.view(lambda tx: tx.conn.execute(audit_log.select()).all())
    assert [one.actor for one in rows] == ["user:admin"]
