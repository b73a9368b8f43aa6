"""The audit log and the table of routes: every route that changes something, and every audited read.

The lists of this module have one entry for each route: a new route without one fails.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig, ScriptedSupervisor, open_rig, sample_path, spec
from integration.test_control_deletion import held_up
from phalanx.core.cost.anomalies import AnomalyKey, AnomalyScope
from phalanx.core.cost.anomaly_life import AnomalyCause, AnomalyDay, AnomalyState, CostAnomaly
from phalanx.core.scaling.model import ScalingPolicy
from phalanx.core.tenancy.principals import HOME_CALLER
from phalanx.executors.protocol import Leftovers
from phalanx.schemas.wire.supervision import CheckpointReport
from phalanx.server.access import AccessTable, Of
from phalanx.server.app import create_app
from phalanx.server.settings_groups.notify import NotifySettings
from phalanx.services.notify.config import ReceiverConfig
from phalanx.services.resources.credentials import open_session
from phalanx.services.studies.suggestions import suggestions_step
from phalanx.store.cost.anomalies import put_anomaly
from phalanx.store.database import Tx
from phalanx.store.notify import deliveries
from phalanx.store.tenancy.audit import CHANGED, READ, AuditEntry, AuditFilter, page

pytestmark = pytest.mark.integration
SECRET = "hunter2-hunter2-hunter2"
SMALL = {"slots_per_node": 1}
Call = tuple[str, str]


class Stage:
    """A control plane and a client that expects success."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.http = httpx.Client(
            base_url=URL,
            transport=rig.transport,
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    def call(self, method: str, path: str, **content: Any) -> httpx.Response:
        answer = self.http.request(method, path, **content)
        assert answer.is_success or answer.is_redirect, (method, path, answer.text)
        return answer

    def running(self) -> ScriptedSupervisor:
        """A job that has made steps and has a checkpoint."""
        num = self.rig.submit(resources=SMALL)
        self.rig.turn()
        node = self.rig.supervisor(num)
        node.ready()
        node.started(pids=(1,))
        node.step(0, 5)
        return node

    def study(self, jobs: bool = True) -> None:
        self.call("POST", "/api/v1/studies", json={"spec": study_spec(jobs), "owner": "ada"})

    def asked(self) -> None:
        self.study(jobs=False)
        self.call("POST", "/api/v1/studies/1/ask", json={})
        suggestions_step(self.rig.platform, self.rig.clock.now())

    def anomaly(self) -> None:
        """A day that cost much more than expected."""
        key = AnomalyKey(AnomalyScope.PROJECT, "default")
        days, state = (AnomalyDay(9, 30, 10),), AnomalyState.OPEN
        one = CostAnomaly(0, key, True, days, AnomalyCause(), (), state, 0)
        self.rig.store.transact(lambda tx: put_anomaly(tx, one))

    def changed(self) -> list[AuditEntry]:
        wanted = AuditFilter(outcome=CHANGED)
        return self.rig.store.view(lambda tx: page(tx, wanted, before=None, limit=1000))


def study_spec(jobs: bool = True) -> dict[str, Any]:
    one: dict[str, Any] = {
        "schema": 1,
        "name": "lr",
        "space": {"lr": {"log": [0.001, 1.0]}},
        "objective": {"metric": "loss"},
        "search": {"method": "random", "seed": 1},
        "trials": {"max": 4},
    }
    if jobs:
        one["job"] = spec(resources=SMALL) | {"run": ["python", "t.py", "--lr", "${params.lr}"]}
    return one


def archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = 8
        tar.addfile(info, io.BytesIO(b"print(1)"))
    return buffer.getvalue()


CODE = archive()
JOB = {"spec": spec(resources=SMALL)}
TEMPLATE = {"template": {"schema": 1, "job": spec(resources=SMALL)}}
SCHEDULE = {"spec": spec(resources=SMALL, project="local"), "cron": "0 * * * *", "owner": "ada"}
GRANT = {"subject": "user:ada", "role": "member", "project": "default"}
POOL = {"file": {"schema": 1, "pools": [{"name": "p", "nodes": [{"name": "n", "slots": 2}]}]}}
PROJECT = {"file": {"schema": 1, "projects": [{"name": "vision", "max_running": 3}]}}
SECRET_PATHS = ("/api/v1/secrets/{secret}", "/api/v1/projects/{name}/secrets/{secret}")
TEMPLATE_PATHS = ("/api/v1/templates/{template}", "/api/v1/projects/{name}/templates/{template}")
SCHEDULES = "/api/v1/projects/{name}/schedules/{schedule}"
SCALING = "/api/v1/pools/{name}/scaling"
BILL = "/api/v1/cost/bills/{bill}"
AT = "2026-11-01T00:00:00Z"
BILLED = {"lines": [{"id": "1", "begin": AT, "end": AT, "kind": "other", "usd": 1}]}
BUDGET = "/api/v1/cost/budgets/{scope}/{name}"
STUDY = "/api/v1/studies/{num}"


def nothing(_: Stage) -> None:
    pass


def made(*calls: tuple[str, str, Any]) -> Callable[[Stage], None]:
    """Requests that have to be made before."""

    def work(stage: Stage) -> None:
        for method, path, body in calls:
            stage.call(method, sample_path(path), json=body)

    return work


def running(stage: Stage) -> None:
    stage.running()


def session(stage: Stage) -> None:
    open_session(stage.rig.platform, HOME_CALLER, stage.rig.clock.now())


def paused(stage: Stage) -> None:
    stage.rig.submit(resources=SMALL)
    stage.call("POST", "/api/v1/jobs/1/stop", json={"goal": "pause"})


def with_checkpoint(stage: Stage) -> None:
    """A running job with a checkpoint in its folder on this machine."""
    node = stage.running()
    path = stage.rig.platform.home.checkpoints_dir / "default" / "j-1" / "step-00000005-00000005"
    path.mkdir(parents=True)
    at = node.now()
    node.sync(CheckpointReport(seq=node.next_seq(), generation=0, step=5, path=str(path), at=at))


def cluster_with_leftovers(stage: Stage) -> None:
    """A cluster that another control plane has left pods in."""
    platform = stage.rig.platform
    left = Leftovers("dead", False, 2, 1, ("j-1",), ("phalanx-default",))
    platform.executor.leftovers = lambda pool: [left]
    platform.executor.forget = lambda pool, owner: left.num_pods
    object.__setattr__(platform, "clusters", SimpleNamespace(known=lambda: {"far": None}))


def pool_that_grows(stage: Stage) -> None:
    stage.rig.platform.executor.scaling_policies = lambda: {"far": ScalingPolicy(max_nodes=8)}
    stage.rig.platform.executor.request = lambda pool, demand: {}
    stage.rig.platform.executor.growth = lambda pool, jobs: {}


def pool_with_bounds(stage: Stage) -> None:
    pool_that_grows(stage)
    stage.call("PUT", "/api/v1/pools/far/scaling", json={"min_nodes": 1})


@dataclass(frozen=True)
class Change:
    """One successful request of a route: what has to be there before, its body, and its path."""

    before: Callable[[Stage], None] = nothing
    json: Any = None
    content: bytes | None = None
    path: str = ""  # empty: the sample path of the route
    is_new: bool = False  # nothing was there before
    is_removal: bool = False  # nothing is there after


ACCOUNT = made(("POST", "/api/v1/accounts", {"name": "ada"}))
GRANTED = made(("POST", "/api/v1/accounts", {"name": "ada"}), ("POST", "/api/v1/grants", GRANT))
JOB_THERE = made(("POST", "/api/v1/jobs", JOB))
JOB_ENDED = made(("POST", "/api/v1/jobs", JOB), ("POST", "/api/v1/jobs/{num}/stop", {}))
SCHEDULE_THERE = made(("PUT", SCHEDULES, SCHEDULE))
HELD = {"usd": 5}

SILENCES = "/api/v1/alerts/silences"
SILENCED = {"matchers": {"alertname": "PhalanxNodesLost"}, "duration_s": 60}


def with_receiver(stage: Stage) -> None:
    receivers = {"ops": {"webhook": "https://hooks.example.com/"}}
    notify = NotifySettings.model_validate({"receivers": receivers})
    known = cast("dict[str, ReceiverConfig]", stage.rig.context.notify.receivers)
    known.update(notify.resolved("").receivers)


def dead_message(stage: Stage) -> None:
    fresh = {"id": "msg_1", "receiver": "ops", "kind": "test", "body": '{"data": {}}'}

    def work(tx: Tx) -> None:
        deliveries.add(tx, [fresh], 0)
        deliveries.put(tx, replace(deliveries.load(tx, 1), state="dead", done_at=0))

    stage.rig.store.transact(work)


CHANGES: dict[Call, Change] = {
    ("POST", "/api/v1/accounts"): Change(json={"name": "ada"}, is_new=True),
    ("PATCH", "/api/v1/accounts/{name}"): Change(
        ACCOUNT, {"disabled": True}, path="/api/v1/accounts/user:ada"
    ),
    ("DELETE", "/api/v1/accounts/{name}"): Change(
        ACCOUNT, path="/api/v1/accounts/user:ada", is_removal=True
    ),
    ("POST", "/api/v1/grants"): Change(ACCOUNT, GRANT, is_new=True),
    ("POST", "/api/v1/grants/take"): Change(
        GRANTED, {"subject": "user:ada", "project": "default"}, is_removal=True
    ),
    ("PUT", "/api/v1/groups/{name}"): Change(
        ACCOUNT, {"members": ["user:ada"]}, path="/api/v1/groups/group:ml", is_new=True
    ),
    ("PUT", "/api/v1/code/{digest}"): Change(
        content=CODE, path=f"/api/v1/code/{hashlib.sha256(CODE).hexdigest()}", is_new=True
    ),
    ("PUT", BUDGET): Change(json=HELD, is_new=True),
    ("DELETE", BUDGET): Change(made(("PUT", BUDGET, HELD)), is_removal=True),
    ("POST", "/api/v1/cost/anomalies/{num}/ack"): Change(Stage.anomaly),
    ("POST", SILENCES): Change(json=SILENCED, is_new=True),
    ("DELETE", SILENCES + "/{num}"): Change(made(("POST", SILENCES, SILENCED)), is_removal=True),
    ("POST", "/api/v1/alerts/deliveries/{num}/resend"): Change(dead_message),
    ("POST", "/api/v1/alerts/receivers/{name}/enable"): Change(
        with_receiver, path="/api/v1/alerts/receivers/ops/enable", is_new=True
    ),
    ("POST", "/api/v1/alerts/receivers/{name}/test"): Change(
        with_receiver, path="/api/v1/alerts/receivers/ops/test", is_new=True
    ),
    ("POST", BILL): Change(json=BILLED, is_new=True),
    ("DELETE", BILL): Change(made(("POST", BILL, BILLED)), is_removal=True),
    ("POST", "/api/v1/cost/prices"): Change(
        json={"prices": [{"kind": "slot", "usd": 2}]}, is_new=True
    ),
    ("POST", "/api/v1/jobs"): Change(json=JOB, is_new=True),
    ("POST", "/api/v1/jobs/batch"): Change(json={"jobs": [JOB, JOB]}, is_new=True),
    ("POST", "/api/v1/jobs/{num}/clone"): Change(JOB_THERE, {}, is_new=True),
    ("PATCH", "/api/v1/jobs/{num}"): Change(JOB_THERE, {"max_duration": "2h"}),
    ("POST", "/api/v1/jobs/{num}/stop"): Change(JOB_THERE, {}),
    ("POST", "/api/v1/jobs/{num}/resume"): Change(paused, {}),
    ("POST", "/api/v1/jobs/{num}/archive"): Change(JOB_ENDED),
    ("POST", "/api/v1/jobs/{num}/unarchive"): Change(
        made(
            ("POST", "/api/v1/jobs", JOB),
            ("POST", "/api/v1/jobs/{num}/stop", {}),
            ("POST", "/api/v1/jobs/{num}/archive", None),
        )
    ),
    ("POST", "/api/v1/jobs/{num}/pin"): Change(JOB_THERE),
    ("POST", "/api/v1/jobs/{num}/unpin"): Change(
        made(("POST", "/api/v1/jobs", JOB), ("POST", "/api/v1/jobs/{num}/pin", None))
    ),
    ("DELETE", "/api/v1/jobs/{num}"): Change(JOB_ENDED, is_removal=True),
    ("POST", "/api/v1/jobs/{num}/deletion/abandon"): Change(lambda stage: held_up(stage.rig)),
    ("POST", "/api/v1/jobs/{num}/checkpoints/pin"): Change(with_checkpoint, {"checkpoint": "5"}),
    ("POST", "/api/v1/jobs/{num}/checkpoints/unpin"): Change(
        lambda stage: (
            with_checkpoint(stage),
            stage.call("POST", "/api/v1/jobs/1/checkpoints/pin", json={"checkpoint": "5"}),
        ),
        {"checkpoint": "5"},
    ),
    ("POST", "/api/v1/jobs/{num}/stacks"): Change(running),
    ("POST", "/api/v1/jobs/{num}/saves"): Change(running),
    ("POST", "/api/v1/jobs/{num}/profiles"): Change(running, {}),
    ("POST", "/api/v1/jobs/{num}/tunnels"): Change(
        running, {"kind": "exec", "command": ["ls"]}, is_new=True
    ),
    ("POST", "/api/v1/nodes/{name}/drain"): Change(json={}, is_new=True),
    ("POST", "/api/v1/nodes/{name}/undrain"): Change(
        made(("POST", "/api/v1/nodes/{name}/drain", {})), is_removal=True
    ),
    ("POST", "/api/v1/pools/apply"): Change(json=POOL, is_new=True),
    ("DELETE", "/api/v1/pools/{name}"): Change(
        made(("POST", "/api/v1/pools/apply", POOL)), path="/api/v1/pools/p", is_removal=True
    ),
    ("PUT", SCALING): Change(
        pool_that_grows, {"max_nodes": 3}, path="/api/v1/pools/far/scaling", is_new=True
    ),
    ("DELETE", SCALING): Change(
        pool_with_bounds, path="/api/v1/pools/far/scaling", is_removal=True
    ),
    ("POST", "/api/v1/pools/{name}/forget"): Change(
        cluster_with_leftovers,
        {"owner": "dead"},
        path="/api/v1/pools/far/forget",
        is_removal=True,
    ),
    ("POST", "/api/v1/projects/apply"): Change(json=PROJECT, is_new=True),
    ("DELETE", "/api/v1/projects/{name}"): Change(
        made(("POST", "/api/v1/projects/apply", PROJECT)),
        path="/api/v1/projects/vision",
        is_removal=True,
    ),
    ("PATCH", "/api/v1/projects/{name}/retention"): Change(json={"logs": "30d"}, is_new=True),
    ("PUT", SCHEDULES): Change(json=SCHEDULE, is_new=True),
    ("DELETE", SCHEDULES): Change(SCHEDULE_THERE, is_removal=True),
    ("POST", f"{SCHEDULES}/pause"): Change(SCHEDULE_THERE),
    ("POST", f"{SCHEDULES}/resume"): Change(
        made(("PUT", SCHEDULES, SCHEDULE | {"paused": True})),
    ),
    ("POST", f"{SCHEDULES}/run"): Change(SCHEDULE_THERE, is_new=True),
    **{("PUT", one): Change(json={"value": SECRET}, is_new=True) for one in SECRET_PATHS},
    **{
        ("DELETE", one): Change(made(("PUT", one, {"value": SECRET})), is_removal=True)
        for one in SECRET_PATHS
    },
    ("POST", "/api/v1/secrets/rotate-key"): Change(
        made(("PUT", SECRET_PATHS[0], {"value": SECRET}))
    ),
    **{("PUT", one): Change(json=TEMPLATE, is_new=True) for one in TEMPLATE_PATHS},
    **{
        ("DELETE", one): Change(made(("PUT", one, TEMPLATE)), is_removal=True)
        for one in TEMPLATE_PATHS
    },
    ("POST", f"{TEMPLATE_PATHS[1]}/submit"): Change(
        made(("PUT", TEMPLATE_PATHS[1], TEMPLATE)), {}, is_new=True
    ),
    ("PUT", "/api/v1/scheduler/policy"): Change(json={"policy": "fair"}, is_new=True),
    ("DELETE", "/api/v1/scheduler/policy"): Change(
        made(("PUT", "/api/v1/scheduler/policy", {"policy": "fair"})), is_removal=True
    ),
    ("POST", "/api/v1/studies"): Change(json={"spec": study_spec()}, is_new=True),
    ("POST", f"{STUDY}/ask"): Change(lambda stage: stage.study(jobs=False), {}),
    ("POST", f"{STUDY}/extend"): Change(Stage.study, {"max_trials": 9}),
    ("POST", f"{STUDY}/pause"): Change(Stage.study),
    ("POST", f"{STUDY}/resume"): Change(
        made(("POST", "/api/v1/studies", {"spec": study_spec()}), ("POST", f"{STUDY}/pause", None))
    ),
    ("POST", f"{STUDY}/stop"): Change(Stage.study),
    ("POST", f"{STUDY}/trials"): Change(Stage.study, {"params": {"lr": 0.5}}),
    ("POST", f"{STUDY}/trials/{{trial}}/report"): Change(Stage.asked, {"unit": 1, "value": 0.5}),
    ("POST", f"{STUDY}/trials/{{trial}}/tell"): Change(Stage.asked, {"value": 0.5}),
    ("POST", "/api/v1/tokens"): Change(json={"name": "t", "scopes": ["read"]}, is_new=True),
    ("POST", "/api/v1/tokens/end-sessions"): Change(session),
    ("POST", "/api/v1/tokens/login-links"): Change(is_new=True),
    ("POST", "/api/v1/tokens/{name}/rotate"): Change(path="/api/v1/tokens/admin/rotate"),
}
# Tested below: they need a session or the id of a token.
ELSEWHERE = {("POST", "/logout"), ("DELETE", "/api/v1/tokens/{name}")}
NO_CHANGES = {
    ("POST", "/api/v1/clients/hello"),  # keeps an embedded server up
    ("POST", "/api/v1/studies/check"),  # stores nothing
    ("POST", "/api/v1/jobs/{num}/tunnels/{tunnel}"),  # bytes of a tunnel, which was audited
    ("DELETE", "/api/v1/jobs/{num}/tunnels/{tunnel}"),
}


def all_routes(rig: Rig) -> dict[Call, Any]:
    return AccessTable(create_app(rig.context).routes).of_route


def test_every_changing_route_has_an_entry_here(rig: Rig) -> None:
    changing = {
        call
        for call, access in all_routes(rig).items()
        if call[0] not in ("GET", "HEAD") and access.needs_caller
    }
    assert changing == set(CHANGES) | ELSEWHERE | NO_CHANGES


def token_of(answer: httpx.Response) -> str:
    """The new token that an answer has; empty: none."""
    body = answer.json() if answer.content else {}
    return str(body.get("token", "")) if isinstance(body, dict) else ""


def one_entry(stage: Stage, route: Call) -> AuditEntry:
    """Make the request of a route; returns its only entry in the audit log."""
    change = CHANGES[route]
    change.before(stage)
    known = {one.id for one in stage.changed()}
    method, path = route[0], change.path or sample_path(route[1])
    answer = stage.call(method, path, json=change.json, content=change.content)
    (fresh,) = [one for one in stage.changed() if one.id not in known]
    assert not [one for one in (SECRET, TOKEN, token_of(answer)) if one and one in str(fresh)]
    return fresh


@pytest.mark.parametrize("route", CHANGES, ids=" ".join)
def test_a_change_leaves_one_entry_with_before_and_after(rig: Rig, route: Call) -> None:
    entry, change = one_entry(Stage(rig), route), CHANGES[route]
    assert (entry.actor, entry.credential, entry.action) == ("user:admin", "admin", " ".join(route))
    assert entry.address
    assert entry.changes
    for one in entry.changes:
        before, after = one["before"], one["after"]
        assert one["what"]
        assert before != after
    before, after = (entry.changes[0][one] for one in ("before", "after"))
    assert (before is None, after is None) == (change.is_new, change.is_removal)


def test_a_revoked_token_and_an_ended_session_leave_one_entry_each(rig: Rig) -> None:
    stage = Stage(rig)
    made = stage.call("POST", "/api/v1/tokens", json={"name": "t", "scopes": ["read"]}).json()
    ticket = stage.call("POST", "/api/v1/tokens/login-links").json()["path"]
    with httpx.Client(base_url=URL, transport=rig.transport, headers={"Origin": URL}) as browser:
        browser.get(ticket)
        page = browser.get("/plain").text
        form = page.split('name="form" value="')[1].split('"')[0]
        assert browser.post("/logout", data={"form": form}).status_code < 400
    stage.call("DELETE", f"/api/v1/tokens/{made['view']['id']}")
    revoked, left = stage.changed()[:2]
    assert revoked.changes[0]["before"]["name"] == "t" and revoked.changes[0]["after"] is None
    assert left.action == "POST /logout" and left.actor == "user:admin" and left.address
    (ended,) = left.changes
    assert ended["what"] == "session of user:admin" and ended["after"] is None


READS = {
    ("GET", "/api/v1/jobs/{num}/checkpoints"),
    ("GET", "/api/v1/jobs/{num}/logs"),
    ("GET", "/api/v1/jobs/{num}/logs/search"),
    ("GET", "/api/v1/jobs/{num}/profiles"),
    ("GET", "/api/v1/jobs/{num}/provenance"),
    ("GET", "/api/v1/jobs/{num}/provenance/diff"),
    ("GET", "/api/v1/jobs/{num}/stacks"),
    ("GET", "/api/v1/jobs/{num}/stream"),
    ("GET", "/api/v1/projects/{name}/secrets"),
    ("GET", "/api/v1/secrets"),
    ("GET", "/api/v1/secrets/{secret}"),
    ("GET", "/api/v1/projects/{name}/secrets/{secret}"),
    ("GET", "/jobs/{num}"),
}


def test_every_read_that_is_audited_leaves_one_entry(rig: Rig) -> None:
    table = all_routes(rig)
    of_attempts = {call for call, access in table.items() if access.of is Of.ATTEMPT}
    audited = {call for call, access in table.items() if access.audited} - of_attempts
    assert audited == set(READS)
    stage = Stage(rig)
    running(stage)
    for path in SECRET_PATHS:
        stage.call("PUT", sample_path(path), json={"value": SECRET})
    for method, route in READS:
        for _ in range(2):
            stage.call(method, sample_path(route))
    rows = rig.store.view(lambda tx: page(tx, AuditFilter(outcome=READ), before=None, limit=1000))
    assert sorted(one.action for one in rows) == sorted(" ".join(one) for one in READS)
    assert {(one.actor, one.credential, bool(one.address)) for one in rows} == {
        ("user:admin", "admin", True)
    }


def test_the_lists_find_a_change_that_is_not_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.store.tenancy.audit.describe", lambda *_: None)
    with open_rig(tmp_path / "home") as rig:
        silent = [not one_entry(Stage(rig), ("PUT", one)).changes for one in SECRET_PATHS]
    assert silent == [True, True]
