"""`ETag`, `If-None-Match` and `If-Match`: on every route of one resource, by the table of routes."""

from __future__ import annotations

import contextvars
import re

import httpx
import pytest

from integration.rig import Rig, sample_path
from integration.test_control_audited_routes import (
    CHANGES,
    NO_CHANGES,
    SCHEDULE,
    SCHEDULES,
    SECRET_PATHS,
    SMALL,
    TEMPLATE,
    TEMPLATE_PATHS,
    Call,
    Stage,
    all_routes,
)
from phalanx.errors import PreconditionFailed
from phalanx.schemas.api.jobs import ChangeRequest
from phalanx.sdk.transport import etag_of
from phalanx.server.app import create_app
from phalanx.server.preconditions import RESOURCES, resource_of
from phalanx.services.changes import settings
from phalanx.store.tags.rows import Resource, tag_of

pytestmark = pytest.mark.integration
_CREATES = "creates something new: no client can have read it"
_FILE = "a file with many pools or projects, applied whole"
EXEMPT: dict[Call, str] = {
    **{
        ("POST", path): _CREATES
        for path in (
            *("/api/v1/accounts", "/api/v1/jobs", "/api/v1/jobs/batch", "/api/v1/studies"),
            *("/api/v1/tokens", "/api/v1/tokens/login-links"),
        )
    },
    ("POST", "/api/v1/pools/apply"): _FILE,
    ("POST", "/api/v1/projects/apply"): _FILE,
    ("POST", "/api/v1/cost/prices"): "adds prices to a history that stays",
    ("POST", "/api/v1/cost/bills/{bill}"): "lines of a provider, each counted once",
    ("DELETE", "/api/v1/cost/bills/{bill}"): "removes lines of a provider, in whatever state",
    ("POST", "/api/v1/cost/anomalies/{num}/ack"): "may be repeated, and changes nothing else",
    ("POST", "/api/v1/alerts/silences"): _CREATES,
    ("DELETE", "/api/v1/alerts/silences/{num}"): "a silence is ended in whatever state it is",
    ("POST", "/api/v1/alerts/deliveries/{num}/resend"): "may be repeated, and changes nothing else",
    ("POST", "/api/v1/alerts/receivers/{name}/enable"): "may be repeated, and changes nothing else",
    ("POST", "/api/v1/alerts/receivers/{name}/test"): _CREATES,
    ("POST", "/api/v1/grants"): "of an account and a project; the account has the tag",
    ("POST", "/api/v1/grants/take"): "of an account and a project; the account has the tag",
    ("POST", "/api/v1/secrets/rotate-key"): "changes no secret",
    ("POST", "/api/v1/tokens/end-sessions"): "ends what no client reads",
    ("DELETE", "/api/v1/tokens/{name}"): "a token is revoked in whatever state it is",
    ("POST", "/api/v1/tokens/{name}/rotate"): "a token is replaced in whatever state it is",
    ("PUT", "/api/v1/code/{digest}"): "its digest is the name",
    ("POST", "/logout"): "of the session of a browser",
    **{
        call: "changes nothing"
        for call in NO_CHANGES
        if resource_of(frozenset({call[0]}), call[1]) is None
    },
}
# The job is deleted, and stays so.
OF_A_DELETED_JOB = ("POST", "/api/v1/jobs/{num}/deletion/abandon")
CONDITIONAL = [call for call in CHANGES if resource_of(frozenset({call[0]}), call[1])]


def values_of(route: str, path: str) -> dict[str, str]:
    found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route), path)
    assert found is not None, (route, path)
    values = found.groupdict()
    return values | {"project": values.get("name", "")}


def tag(rig: Rig, route: str, path: str, kind: Resource) -> str | None:
    values = values_of(route, path)
    if kind not in (Resource.SCHEDULE, Resource.TEMPLATE, Resource.SECRET):
        del values["project"]
    return rig.store.view(lambda tx: tag_of(tx, kind, values))


def test_every_changing_route_takes_if_match_or_is_listed_with_a_reason(rig: Rig) -> None:
    document = create_app(rig.context).openapi()
    takes = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if any(one["name"] == "If-Match" for one in operation.get("parameters", ()))
    }
    changing = {
        call
        for call, access in all_routes(rig).items()
        if call[0] not in ("GET", "HEAD") and access.needs_caller
    }
    assert not takes & set(EXEMPT)
    assert takes | set(EXEMPT) == changing
    reads = {
        path
        for path, methods in document["paths"].items()
        if "304" in methods.get("get", {"responses": {}})["responses"]
    }
    assert reads == {path for path in RESOURCES if "get" in document["paths"][path]}


@pytest.mark.parametrize("route", CONDITIONAL, ids=" ".join)
def test_a_stale_tag_changes_nothing_and_a_fresh_one_does(rig: Rig, route: Call) -> None:
    stage, change, kind = Stage(rig), CHANGES[route], resource_of(frozenset({route[0]}), route[1])
    assert kind is not None
    change.before(stage)
    path = change.path or sample_path(route[1])

    def send(**headers: str) -> httpx.Response:
        return stage.http.request(
            route[0], path, json=change.json, content=change.content, headers=headers
        )

    before = stage.changed()
    for stale in ('"0000"', '"0000", "1111.2222"', 'W/"0000"'):
        answer = send(**{"If-Match": stale})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
        assert answer.json()["hint"]
    assert [one.id for one in stage.changed()] == [one.id for one in before]
    found = tag(rig, route[1], path, kind)
    if found is None:
        assert "does not exist" in answer.json()["message"]
        assert send(**{"If-Match": "*"}).status_code == 412
        assert send(**{"If-None-Match": "*"}).is_success
        if route == OF_A_DELETED_JOB:
            return
        again = send(**{"If-None-Match": "*"})
        assert again.status_code == 412 and "exists already" in again.json()["message"]
        return
    assert "since you read" in answer.json()["message"]
    for wrong in ("0000", '"', '"a" "b"'):
        refused = send(**{"If-Match": wrong})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    assert send(**{"If-Match": f'W/"{found}"'}).status_code == 412
    answer = send(**{"If-Match": f'"0000", "{found}.whatever"'})
    assert answer.is_success, answer.text


def test_a_read_has_a_tag_and_is_not_sent_twice(rig: Rig) -> None:
    stage = Stage(rig)
    stage.running()
    stage.study()
    stage.call("PUT", sample_path(SCHEDULES), json=SCHEDULE)
    stage.call("PUT", sample_path(TEMPLATE_PATHS[1]), json=TEMPLATE)
    projects = {"schema": 1, "projects": [{"name": "local", "max_running": 3}]}
    stage.call("POST", "/api/v1/projects/apply", json={"file": projects})
    for path in ("/api/v1/templates/{template}", *SECRET_PATHS):
        body = TEMPLATE if path.endswith("{template}") else {"value": "hidden-hidden"}
        stage.call("PUT", sample_path(path), json=body)
    stage.call("PUT", sample_path("/api/v1/cost/budgets/{scope}/{name}"), json={"usd": 5})
    stage.call("POST", "/api/v1/accounts", json={"name": "ada"})
    names = {"/api/v1/nodes/{name}": stage.rig.client.nodes()[0].id}
    names |= {"/api/v1/accounts/{name}": "user:ada"}
    document = create_app(rig.context).openapi()
    paths = [path for path in RESOURCES if "get" in document["paths"][path]]
    assert len(paths) == 12
    for route in paths:
        path = route.replace("{name}", names[route]) if route in names else sample_path(route)
        first = stage.call("GET", path)
        etag = first.headers["ETag"]
        second = stage.http.get(path, headers={"If-None-Match": etag})
        assert (second.status_code, second.content) == (304, b""), path
        assert second.headers["ETag"] == etag
        for other in ('"x"', f'W/"x", {etag[:-3]}"'):
            answer = stage.http.get(path, headers={"If-None-Match": other})
            assert (answer.status_code, answer.json()) == (200, first.json()), path


def test_progress_changes_the_answer_and_not_what_if_match_compares(rig: Rig) -> None:
    stage = Stage(rig)
    node = stage.running()
    first = stage.call("GET", "/api/v1/jobs/1").headers["ETag"]
    rig.clock.advance(5)
    node.step(0, 6)
    answer = stage.http.get("/api/v1/jobs/1", headers={"If-None-Match": first})
    assert answer.status_code == 200 and answer.json()["progress"]["step"] == 6
    assert answer.headers["ETag"] != first
    request = {"json": {"priority": 60}, "headers": {"If-Match": first}}
    assert stage.http.patch("/api/v1/jobs/1", **request).is_success
    again = stage.http.patch("/api/v1/jobs/1", **request)
    assert again.status_code == 412
    assert "settings of job j-1 have changed since you read them" in again.json()["message"]


def test_a_change_between_the_look_and_the_transaction_is_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = rig.submit(resources=SMALL)
    read, change = rig.job(num), settings.change

    def overtaken(platform, num, request, now, actor):
        other = ChangeRequest(priority=70)
        contextvars.Context().run(change, platform, num, other, now, "other")
        change(platform, num, request, now, actor)

    monkeypatch.setattr(settings, "change", overtaken)
    with pytest.raises(PreconditionFailed, match="have changed since you read them"):
        rig.client.change(num, ChangeRequest(priority=60), if_match=read.etag)
    assert rig.job(num).priority == 70


def test_the_client_sends_conditions_and_knows_tags(rig: Rig) -> None:
    num = rig.submit(resources=SMALL)
    view = rig.client.job(num)
    assert etag_of(view).partition(".")[0] == view.etag
    rig.client.change(num, ChangeRequest(priority=60))
    stale = rig.client.matching(etag_of(view))
    for change in (
        lambda: stale.stop(num),
        lambda: stale.change(num, ChangeRequest(priority=1)),
    ):
        with pytest.raises(PreconditionFailed):
            change()
    assert rig.job(num).state == "queued"
    fresh = rig.client.matching(etag_of(rig.client.job(num)))
    assert fresh.stop(num).state == "cancelled"
    assert rig.client.job(num).priority == 60
