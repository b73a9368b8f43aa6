"""Accounts, groups and roles: every route with every role in the own and in another project."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.rig import URL, Rig, open_rig, sample_path, spec
from phalanx.core.contract.access import Scope
from phalanx.core.tenancy.roles import (
    OF_ALL,
    PERMISSIONS,
    PLATFORM_WIDE,
    Permission,
    UserRole,
)
from phalanx.errors import Conflict, NotFound, PermissionDenied, Unauthenticated
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.studies import SubmitStudyRequest
from phalanx.sdk import PhalanxClient
from phalanx.server.access import AccessTable, Of
from phalanx.server.app import create_app
from phalanx.server.gate import Gate
from phalanx.store import events
from phalanx.store.listings import jobs as listings
from phalanx.store.listings.jobs import JobFilter
from phalanx.store.studies import rows

pytestmark = pytest.mark.integration
OURS, THEIRS = "vision", "text"
MARK = "zebra"  # a part of every name in the other project
WHOLE_ROLES = [f"whole-{role}" for role in UserRole]
CALLERS = ["nothing", *(f"ours-{role}" for role in UserRole), *WHOLE_ROLES]


def study_spec(project: str, name: str) -> dict[str, Any]:
    job = spec(name=name, project=project, resources={"slots_per_node": 1})
    return {
        "schema": 1,
        "name": name,
        "job": job | {"run": ["python", "train.py", "--lr", "${params.lr}"]},
        "space": {"lr": {"values": [0.1, 1.0]}},
        "objective": {"metric": "loss"},
        "search": {"method": "grid", "seed": 1},
    }


# Bodies of the routes that find their project in the body.
BODIES: dict[tuple[str, str], Callable[[str], dict[str, Any]]] = {
    ("POST", "/api/v1/jobs"): lambda project: {"spec": spec(project=project)},
    ("POST", "/api/v1/jobs/batch"): lambda project: {"jobs": [{"spec": spec(project=project)}]},
    ("POST", "/api/v1/studies"): lambda project: {"spec": study_spec(project, "more")},
    ("POST", "/api/v1/studies/check"): lambda project: {"spec": study_spec(project, "more")},
    ("POST", "/api/v1/grants"): lambda project: {
        "subject": "user:other",
        "role": "viewer",
        "project": project,
    },
    ("POST", "/api/v1/grants/take"): lambda project: {"subject": "user:other", "project": project},
}

# Routes that need a second permission, in the project of what they make.
ALSO = {("POST", "/api/v1/jobs/{num}/clone"): Permission.JOBS_SUBMIT}


class Platform:
    """A control plane with a job and a study in each of two projects, and an account for each role."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.http = httpx.Client(base_url=URL, transport=rig.transport, verify=False)
        self.table = AccessTable(create_app(rig.context).routes)
        self.tokens: dict[str, str] = {}
        accounts = rig.client.accounts
        accounts.add("other")
        rig.client.apply_projects({"schema": 1, "projects": [{"name": OURS}, {"name": THEIRS}]})
        for name in CALLERS:
            accounts.add(name)
            place, _, role = name.partition("-")
            if role:
                accounts.grant(f"user:{name}", role, OURS if place == "ours" else None)
            self.tokens[name] = rig.client.create_token(
                name, [Scope.ADMIN], principal=f"user:{name}"
            ).token
        for project, label in ((OURS, "plain"), (THEIRS, MARK)):
            body = spec(project=project, name=f"{label}-job", resources={"slots_per_node": 1})
            rig.client.submit(SubmitRequest(spec=body, owner="someone"))
            study = SubmitStudyRequest(spec=study_spec(project, f"{label}-study"), owner="someone")
            rig.client.studies.submit(study)

    def send(self, caller: str, method: str, path: str, project: str) -> httpx.Response:
        num = {OURS: 1, THEIRS: 2}.get(project, 999)
        access = self.table.of_route[method, path]
        dry = "?dry_run=true" if (method, path) == ("DELETE", "/api/v1/jobs/{num}") else ""
        name = project if access.of is Of.PROJECT else "local"
        # The other routes need the job.
        filled = sample_path(path.replace("{num}", str(num)).replace("{name}", name)) + dry
        body: Any = {}
        if access.of is Of.BODY:
            body = BODIES[method, path](project)  # a new route of this kind needs an entry
        headers = {"Authorization": f"Bearer {self.tokens[caller]}"}
        content = {} if method in ("GET", "HEAD", "DELETE") else {"json": body}
        return self.http.request(method, filled, headers=headers, **content)

    def expected(self, caller: str, route: tuple[str, str], project: str) -> str:
        access, also = self.table.of_route[route], ALSO.get(route)
        place, _, name = caller.partition("-")
        role = PERMISSIONS[UserRole(name)] if name else frozenset()
        permission = access.permission
        if permission in OF_ALL:
            return "allowed"
        if place == "whole":
            return "allowed" if {permission, also or permission} <= role else "denied"
        if access.of is Of.WHOLE:
            return "denied"
        counts = permission not in PLATFORM_WIDE and permission in role
        if access.of is Of.ANY:
            return "allowed" if counts else "denied"
        if access.of in (Of.JOB, Of.STUDY, Of.PROJECT):
            sees = Permission.PROJECT_READ if access.of is Of.PROJECT else Permission.JOBS_READ
            # The rule of owners lets them reach the question whether the job is theirs.
            if project != OURS or sees not in role:
                return "hidden" if access.permission not in PLATFORM_WIDE else "denied"
        counts = counts and (also is None or also in role)
        return "allowed" if counts and project == OURS else "denied"


def faults(platform: Platform, callers: list[str]) -> list[tuple[str, ...]]:
    """Every answer that is not exactly the one of the table, and every word of the other project."""
    wrong: list[tuple[str, ...]] = []
    for caller in callers:
        for (method, path), access in platform.table.of_route.items():
            if not access.needs_caller or path == "/logout":
                continue
            for project in (THEIRS, OURS):
                answer = platform.send(caller, method, path, project)
                expected = platform.expected(caller, (method, path), project)
                got = {401: "denied", 403: "denied"}.get(answer.status_code, "allowed")
                if expected == "hidden":
                    none = platform.send(caller, method, path, "nothing-there")
                    same = re.sub(r"\d+|[a-z-]+'?\"", "", answer.text) == re.sub(
                        r"\d+|[a-z-]+'?\"", "", none.text
                    )
                    got = "hidden" if answer.status_code == 404 and same else answer.text[:80]
                leaks = MARK in answer.text and not caller.startswith("whole")
                if got != expected or leaks:
                    wrong.append((caller, method, path, project, expected, got, str(leaks)))
                if answer.status_code >= 500:
                    wrong.append((caller, method, path, project, answer.text[:200]))
    return wrong


def state_of(rig: Rig) -> tuple[object, ...]:
    """Everything that is stored about the other project."""

    def work(tx: Any) -> tuple[object, ...]:
        theirs = listings.page(tx, JobFilter(project=THEIRS), limit=99).jobs
        studies = rows.page(tx, rows.StudyFilter(project=THEIRS), before=None, limit=99)
        logs = [events.of_job(tx, one.num, after=0, limit=99) for one in theirs]
        return theirs, studies, logs

    return rig.store.view(work)


@pytest.fixture
def platform(rig: Rig) -> Platform:
    return Platform(rig)


@pytest.mark.parametrize(
    "callers", [["ours-member"], pytest.param(CALLERS, marks=pytest.mark.proof)]
)
def test_every_route_with_every_role_in_the_own_and_in_another_project(
    platform: Platform, callers: list[str]
) -> None:
    before = state_of(platform.rig)
    assert faults(platform, [one for one in callers if one not in WHOLE_ROLES]) == []
    assert state_of(platform.rig) == before, "nothing was written in the other project"
    assert faults(platform, [one for one in callers if one in WHOLE_ROLES]) == []


def test_the_table_finds_a_gate_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def permit(*_: object) -> None:
        pass

    with open_rig(tmp_path / "home") as rig:
        platform = Platform(rig)
        monkeypatch.setattr(Gate, "_check_permission", permit)
        found = faults(platform, ["ours-viewer"])
    assert len(found) > 20 and any(one[-1] == "True" for one in found)


def client_of(rig: Rig, token: str) -> PhalanxClient:
    return PhalanxClient(URL, token, transport=rig.transport)


def test_a_team_with_a_group_and_a_service_account(rig: Rig) -> None:  # noqa: PLR0915
    accounts = rig.client.accounts
    accounts.add("ada")
    accounts.add("bob")
    accounts.add("ci", "service")
    with pytest.raises(Conflict):
        accounts.add("ada")
    with pytest.raises(Conflict):
        accounts.add("admin")  # the user of the home
    with pytest.raises(NotFound):
        accounts.grant("group:ml", "member", OURS)
    accounts.set_group("group:ml", ["user:ada", "service:ci", "user:bob"])
    accounts.grant("group:ml", "member", OURS)
    accounts.grant("user:bob", "admin", OURS)
    tokens = {
        name: rig.client.create_token("t", [Scope.ADMIN], principal=name).token
        for name in ("user:ada", "user:bob", "service:ci")
    }
    body = SubmitRequest(spec=spec(project=OURS), owner="pretended")
    with client_of(rig, tokens["service:ci"]) as ci, client_of(rig, tokens["user:ada"]) as ada:
        job = ci.submit(body).job
        assert job is not None and job.owner == "service:ci"
        assert ci.events(job.num).events[0].actor == "service:ci"
        with pytest.raises(PermissionDenied):
            ada.stop(job.num, goal="cancel")  # another one's job needs an operator
        with pytest.raises(PermissionDenied):
            ada.submit(SubmitRequest(spec=spec(project=THEIRS)))
        assert [one.num for one in ada.jobs().jobs] == [job.num]
        mine = ada.submit(body).job
        assert mine is not None and mine.owner == "ada"
        assert ada.stop(mine.num, goal="cancel").state == "cancelled"
        assert ada.events(mine.num).events[-1].actor == "user:ada"
        assert ada.accounts.who_am_i().roles == {OURS: UserRole.MEMBER}
        with pytest.raises(PermissionDenied):
            ada.accounts.grants()
    with client_of(rig, tokens["user:bob"]) as bob, client_of(rig, tokens["user:ada"]) as ada:
        bob.accounts.grant("user:ada", "operator", OURS)
        with pytest.raises(PermissionDenied):
            bob.accounts.grant("user:bob", "admin")
        assert {one.project for one in bob.accounts.grants()} == {OURS}
        ada.stop(job.num, goal="cancel")
        bob.accounts.take("user:ada", OURS)
        assert ada.accounts.who_am_i().roles == {OURS: UserRole.MEMBER}
        accounts.set_group("group:ml", [])
        assert ada.accounts.who_am_i().roles == {}
        with pytest.raises(PermissionDenied):
            ada.jobs()
        accounts.remove("user:ada")
        with pytest.raises(Unauthenticated):
            ada.jobs()
    assert [one.id for one in accounts.accounts()] == ["service:ci", "user:bob"]


def test_an_account_sees_and_makes_tokens_of_its_own_alone(rig: Rig) -> None:
    rig.client.accounts.add("ada")
    home = rig.client.create_token("of the home", [Scope.READ]).view
    token = rig.client.create_token("hers", [Scope.ADMIN], principal="user:ada").token
    with client_of(rig, token) as ada:
        made = ada.create_token("laptop", [Scope.READ])
        assert made.view.principal == "user:ada"
        assert {one.name for one in ada.tokens()} == {"hers", "laptop"}
        for denied in (
            lambda: ada.create_token("x", [Scope.READ], principal="user:admin"),
            lambda: ada.rotate_token("admin"),
            lambda: ada.login_link(),
        ):
            with pytest.raises(PermissionDenied):
                denied()
        for hidden in (ada.revoke_token, ada.rotate_token):
            with pytest.raises(NotFound):
                hidden(home.id)
        with client_of(rig, made.token) as reader, pytest.raises(PermissionDenied):
            reader.create_token("more", [Scope.ADMIN])  # a scope is no way to a greater one
        ada.revoke_token(made.view.id)
    with pytest.raises(NotFound):
        rig.client.create_token("x", [Scope.READ], principal="user:unknown")


def test_the_token_of_an_attempt_opens_the_routes_of_supervisors_alone(rig: Rig) -> None:
    num = rig.submit(resources={"slots_per_node": 1})
    rig.submit(project=THEIRS, resources={"slots_per_node": 1})
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    platform_routes = AccessTable(create_app(rig.context).routes).of_route
    bearer = {"Authorization": f"Bearer {supervisor.token}"}
    opened = []
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        for (method, path), access in platform_routes.items():
            filled = sample_path(path)
            if (
                access.needs_caller
                and http.request(method, filled, headers=bearer).status_code != 401
            ):
                opened.append((method, path))
        assert opened == []
        # Not even as the supervisor of another attempt, of another node, or of a job that has ended.
        asked = {"job": num, "attempt": 1, "node_rank": 0}
        secrets = "/api/v1/supervisors/secrets"
        for changed in ({"attempt": 2}, {"node_rank": 1}, {"job": num + 1}):
            answer = http.get(secrets, params=asked | changed, headers=bearer)
            assert answer.status_code in (401, 403, 404, 409), answer.text
