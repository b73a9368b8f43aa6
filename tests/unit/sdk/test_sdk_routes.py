"""Every method of the client calls a route that the server has."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache

import httpx
import pytest
from fastapi import FastAPI

from phalanx.errors import ServerUnavailable
from phalanx.schemas.api.cost import SetBudgetRequest
from phalanx.schemas.api.cost_prices import PriceRequest
from phalanx.schemas.api.jobs import ChangeRequest, CloneRequest, SubmitRequest
from phalanx.schemas.api.money.bills import BillLineRequest
from phalanx.schemas.api.schedules import PutScheduleRequest
from phalanx.schemas.api.studies import (
    AskRequest,
    ExtendStudyRequest,
    SubmitStudyRequest,
    TellRequest,
    TrialReportRequest,
)
from phalanx.schemas.api.telemetry import ProfileRequest, RequestTicket
from phalanx.schemas.api.templates import SubmitTemplateRequest
from phalanx.schemas.wire.tunnels import OpenTunnelRequest
from phalanx.sdk import PhalanxClient
from phalanx.sdk.accounts import AccountCalls
from phalanx.sdk.alerts import AlertCalls
from phalanx.sdk.cost import CostCalls
from phalanx.sdk.live import LiveCalls
from phalanx.sdk.retention import RetentionCalls
from phalanx.sdk.runs import RunCalls
from phalanx.sdk.schedules import ScheduleCalls
from phalanx.sdk.studies import StudyCalls
from phalanx.sdk.templates import TemplateCalls
from phalanx.sdk.traces import TraceCalls
from phalanx.sdk.transport import Transport
from phalanx.sdk.tunnels import TunnelCalls
from phalanx.server.live import routes as live
from phalanx.server.routers import (
    accounts,
    audit,
    cost,
    jobs,
    logins,
    platform,
    resources,
    retention,
    schedules,
    studies,
    telemetry,
    templates,
    tokens,
)
from phalanx.server.routers.monitoring import alerts
from phalanx.server.routers.tracking import runs
from phalanx.server.tunnels import routes as tunnels

pytestmark = pytest.mark.unit
TICKET = RequestTicket(attempt=1, generation=0, request=2)
AT = datetime(2026, 11, 1, tzinfo=UTC)
BILLED = BillLineRequest(id="1", begin=AT, end=AT, kind="other", usd=1)
CALLS: dict[str, Callable[[PhalanxClient], object]] = {
    "info": lambda c: c.info(),
    "measure": lambda c: c.measure(),
    "readiness": lambda c: c.readiness(),
    "hello": lambda c: c.hello(),
    "has_code": lambda c: c.has_code("a" * 64),
    "put_code": lambda c: c.put_code("a" * 64, b""),
    "submit": lambda c: c.submit(SubmitRequest(spec={"run": "x"}), dry_run=True),
    "submit_batch": lambda c: c.submit_batch([SubmitRequest(spec={"run": "x"})]),
    "jobs": lambda c: c.jobs(states=("running",), labels={"a": "b"}),
    "every_job": lambda c: list(c.every_job(states=("running",))),
    "job": lambda c: c.job(1),
    "change": lambda c: c.change(1, ChangeRequest(priority=70), if_match="a"),
    "clone": lambda c: c.clone(1, CloneRequest(checkpoint="latest")),
    "events": lambda c: c.events(1, after=3),
    "history": lambda c: list(c.history(1)),
    "logs": lambda c: c.logs(1, ranks=(0,), stream="err", tail=5),
    "search_logs": lambda c: c.search_logs(1, text="x", since=AT, ranks=(0,)),
    "metrics": lambda c: c.metrics(1, names=("loss",)),
    "compare_metrics": lambda c: c.compare_metrics([1, 2], ["loss"], reduce="mean"),
    "post_metrics": lambda c: c.post_metrics(1, [], rank=2),
    "checkpoints": lambda c: c.checkpoints(1),
    "provenance": lambda c: c.provenance(1),
    "provenance_diff": lambda c: c.provenance_diff(1, 2),
    "ask_stacks": lambda c: c.ask_stacks(1),
    "stacks": lambda c: c.stacks(1, asked=TICKET),
    "ask_profile": lambda c: c.ask_profile(1, ProfileRequest()),
    "profiles": lambda c: c.profiles(1, asked=TICKET),
    "ask_save": lambda c: c.ask_save(1),
    "saves": lambda c: c.saves(1, asked=TICKET),
    "stop": lambda c: c.stop(1, goal="pause"),
    "resume": lambda c: c.resume(1),
    "pools": lambda c: c.pools(),
    "pool": lambda c: c.pool("a"),
    "apply_pools": lambda c: c.apply_pools({}),
    "remove_pool": lambda c: c.remove_pool("a"),
    "pool_scaling": lambda c: c.pool_scaling("a"),
    "scale_pool": lambda c: c.scale_pool("a", max_nodes=3),
    "reset_pool_scaling": lambda c: c.reset_pool_scaling("a"),
    "leftovers": lambda c: c.leftovers("a"),
    "forget_pool": lambda c: c.forget_pool("a", "b1"),
    "nodes": lambda c: c.nodes("a"),
    "node": lambda c: c.node("a"),
    "drain": lambda c: c.drain("a", jobs="move"),
    "undrain": lambda c: c.undrain("a"),
    "projects": lambda c: c.projects(),
    "project": lambda c: c.project("a"),
    "apply_projects": lambda c: c.apply_projects({}),
    "remove_project": lambda c: c.remove_project("a"),
    "stores": lambda c: c.stores(),
    "runs.page": lambda c: c.runs.page("tag:a"),
    "runs.every": lambda c: next(c.runs.every("tag:a")),
    "runs.names": lambda c: c.runs.names(),
    "traces.of_job": lambda c: c.traces.of_job(1, limit=50),
    "traces.otlp": lambda c: c.traces.otlp(1),
    "alerts.live": lambda c: c.alerts.live(),
    "alerts.silences": lambda c: c.alerts.silences(),
    "alerts.silence": lambda c: c.alerts.silence({"alertname": "a"}, 60.0, "why"),
    "alerts.end_silence": lambda c: c.alerts.end_silence(3),
    "alerts.deliveries": lambda c: c.alerts.deliveries("dead", limit=5),
    "alerts.resend": lambda c: c.alerts.resend(3),
    "alerts.enable": lambda c: c.alerts.enable("ops"),
    "alerts.test": lambda c: c.alerts.test("ops"),
    "probes": lambda c: c.probes(),
    "objectives": lambda c: c.objectives(days=7, project="default"),
    "quotas": lambda c: c.quotas(project="default", user="ada"),
    "log_senders": lambda c: c.log_senders(),
    "scheduler_policy": lambda c: c.scheduler_policy(),
    "set_scheduler_policy": lambda c: c.set_scheduler_policy("fair"),
    "reset_scheduler_policy": lambda c: c.reset_scheduler_policy(),
    "why": lambda c: c.why(1),
    "tunnels.open": lambda c: c.tunnels.open(1, OpenTunnelRequest(kind="forward", port=1)),
    "tunnels.receive": lambda c: c.tunnels.receive(1, "0" * 32, 0),
    "tunnels.send": lambda c: c.tunnels.send(1, "0" * 32, 0, b""),
    "tunnels.end": lambda c: c.tunnels.end(1, "0" * 32),
    "retention.archive": lambda c: c.retention.archive(1),
    "retention.unarchive": lambda c: c.retention.unarchive(1),
    "retention.pin": lambda c: c.retention.pin(1),
    "retention.unpin": lambda c: c.retention.unpin(1),
    "retention.delete": lambda c: c.retention.delete(1, dry_run=True),
    "retention.abandon": lambda c: c.retention.abandon(1),
    "retention.overview": lambda c: c.retention.overview(),
    "retention.periods": lambda c: c.retention.periods("vision"),
    "retention.set_periods": lambda c: c.retention.set_periods("vision", logs="30d"),
    "retention.pin_checkpoint": lambda c: c.retention.pin_checkpoint(1, "latest"),
    "retention.unpin_checkpoint": lambda c: c.retention.unpin_checkpoint(1, "latest"),
    "tokens": lambda c: c.tokens(),
    "create_token": lambda c: c.create_token("a", ["read"]),
    "rotate_token": lambda c: c.rotate_token("a"),
    "revoke_token": lambda c: c.revoke_token("a"),
    "login_link": lambda c: c.login_link(),
    "end_sessions": lambda c: c.end_sessions(),
    "studies.submit": lambda c: c.studies.submit(SubmitStudyRequest(spec={})),
    "studies.check": lambda c: c.studies.check(SubmitStudyRequest(spec={})),
    "studies.list": lambda c: c.studies.list(states=("running",), name="a"),
    "studies.get": lambda c: c.studies.get(1),
    "studies.results": lambda c: c.studies.results(1),
    "studies.trials": lambda c: c.studies.trials(1, statuses=("failed",)),
    "studies.all_trials": lambda c: list(c.studies.all_trials(1)),
    "studies.events": lambda c: c.studies.events(1, after=3),
    "studies.follow": lambda c: list(c.studies.follow(1)),
    "studies.pause": lambda c: c.studies.pause(1),
    "studies.resume": lambda c: c.studies.resume(1),
    "studies.stop": lambda c: c.studies.stop(1, finish=True),
    "studies.extend": lambda c: c.studies.extend(1, ExtendStudyRequest(max_trials=2)),
    "studies.create": lambda c: c.studies.create({}),
    "studies.open": lambda c: c.studies.open(1),
    "studies.ask": lambda c: c.studies.ask(1, AskRequest()),
    "studies.report": lambda c: c.studies.report(1, 0, TrialReportRequest(unit=1, value=0.5)),
    "studies.tell": lambda c: c.studies.tell(1, 0, TellRequest(value=0.5)),
    "accounts.who_am_i": lambda c: c.accounts.who_am_i(),
    "accounts.account": lambda c: c.accounts.account("user:a"),
    "accounts.accounts": lambda c: c.accounts.accounts(),
    "accounts.add": lambda c: c.accounts.add("ada"),
    "accounts.change": lambda c: c.accounts.change("user:ada", disabled=True),
    "accounts.login_provider": lambda c: c.accounts.login_provider(),
    "accounts.start_device_login": lambda c: c.accounts.start_device_login(),
    "accounts.start_browser_login": lambda c: c.accounts.start_browser_login("http://x"),
    "accounts.finish_login": lambda c: c.accounts.finish_login("sealed"),
    "accounts.remove": lambda c: c.accounts.remove("user:ada"),
    "accounts.groups": lambda c: c.accounts.groups(),
    "accounts.set_group": lambda c: c.accounts.set_group("group:ml", []),
    "accounts.grants": lambda c: c.accounts.grants(),
    "accounts.grant": lambda c: c.accounts.grant("user:ada", "member", "vision"),
    "accounts.audit": lambda c: list(c.accounts.audit(actor="user:ada", outcome="denied")),
    "accounts.take": lambda c: c.accounts.take("user:ada", "vision"),
    "studies.add_trial": lambda c: c.studies.add_trial(1, {"lr": 0.1}),
    "costs.advice": lambda c: c.costs.advice(project="a"),
    "costs.anomalies": lambda c: c.costs.anomalies(state="all", limit=3),
    "costs.acknowledge": lambda c: c.costs.acknowledge(1),
    "costs.bills": lambda c: c.costs.bills(),
    "costs.import_bill": lambda c: c.costs.import_bill("a b", [BILLED]),
    "costs.remove_bill": lambda c: c.costs.remove_bill("a b"),
    "costs.reconcile": lambda c: c.costs.reconcile("2026-11", by="day", tolerance=2),
    "costs.prices": lambda c: c.costs.prices(history=True),
    "costs.set_prices": lambda c: c.costs.set_prices([PriceRequest(usd=1)]),
    "costs.budget": lambda c: c.costs.budget("user", "a b"),
    "costs.budgets": lambda c: c.costs.budgets(),
    "costs.set_budget": lambda c: c.costs.set_budget("user", "a b", SetBudgetRequest(usd=1)),
    "costs.remove_budget": lambda c: c.costs.remove_budget("job", "1"),
    "schedules.list": lambda c: c.schedules.list("vision"),
    "schedules.show": lambda c: c.schedules.show("nightly"),
    "schedules.put": lambda c: c.schedules.put(
        "nightly", PutScheduleRequest(spec={}, cron="* * * * *"), "vision"
    ),
    "schedules.remove": lambda c: c.schedules.remove("nightly"),
    "schedules.pause": lambda c: c.schedules.pause("nightly"),
    "schedules.resume": lambda c: c.schedules.resume("nightly"),
    "schedules.run": lambda c: c.schedules.run("nightly"),
    "templates.list": lambda c: c.templates.list(),
    "templates.show": lambda c: c.templates.show("tune", version=2),
    "templates.put": lambda c: c.templates.put("tune", {}, None),
    "templates.remove": lambda c: c.templates.remove("tune"),
    "templates.submit": lambda c: c.templates.submit("tune", SubmitTemplateRequest()),
    "live.feed": lambda c: c.live.feed(project="a", jobs=[1], kinds=["submitted"], after=3),
    "live.follow": lambda c: list(c.live.follow(jobs=[1])),
    "live.follow_job": lambda c: list(c.live.follow_job(1, include=["logs"])),
    "costs.report": lambda c: c.costs.report("user", job=1, pool="a", limit=3),
}


@cache
def routes() -> dict[tuple[str, str], set[str]]:
    """Method and path pattern of every route, with the names of its query parameters."""
    app = FastAPI()
    parts = (
        live,
        jobs,
        telemetry,
        resources,
        platform,
        tokens,
        studies,
        cost,
        accounts,
        audit,
        logins,
        retention,
        schedules,
        templates,
        tunnels,
        alerts,
        runs,
    )
    for module in parts:
        app.include_router(module.router)
    app.include_router(telemetry.reports)
    app.include_router(telemetry.comparing)
    app.include_router(retention.periods_router)
    found = {}
    for path, methods in app.openapi()["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", path)
        for method, route in methods.items():
            names = {one["name"] for one in route.get("parameters", ()) if one["in"] == "query"}
            found[method.upper(), pattern] = names
    return found


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server ever answers here: calls that wait for one give up at once."""
    monkeypatch.setattr("phalanx.sdk.studies.PATIENCE_S", 0.0)
    monkeypatch.setattr("phalanx.sdk.live.PATIENCE_S", 0.0)


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
    assert methods - set(CALLS) == {
        "accounts",
        "alerts",
        "traces",
        "close",
        "costs",
        "is_healthy",
        "live",
        "retention",
        "runs",
        "matching",
        "schedules",
        "secrets",
        "studies",
        "templates",
        "tunnels",
    }
    calls = {f"studies.{name}" for name in set(dir(StudyCalls)) - set(dir(Transport))}
    calls |= {f"runs.{name}" for name in set(dir(RunCalls)) - set(dir(Transport))}
    calls |= {f"traces.{name}" for name in set(dir(TraceCalls)) - set(dir(Transport))}
    calls |= {f"alerts.{name}" for name in set(dir(AlertCalls)) - set(dir(Transport))}
    calls |= {f"costs.{name}" for name in set(dir(CostCalls)) - set(dir(Transport))}
    calls |= {f"live.{name}" for name in dir(LiveCalls) if name.startswith("f")}
    calls |= {f"retention.{name}" for name in set(dir(RetentionCalls)) - set(dir(Transport))}
    calls |= {f"schedules.{name}" for name in set(dir(ScheduleCalls)) - set(dir(Transport))}
    calls |= {f"templates.{name}" for name in set(dir(TemplateCalls)) - set(dir(Transport))}
    names = set(dir(TunnelCalls)) - set(dir(Transport)) - {"connect"}  # it calls `open` and `end`
    calls |= {f"tunnels.{name}" for name in names}
    calls |= {f"accounts.{name}" for name in set(dir(AccountCalls)) - set(dir(Transport))}
    assert calls <= set(CALLS)


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
