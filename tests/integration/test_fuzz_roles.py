"""The fuzzer of `test_control_fuzz` with every role: its errors, its statuses, and what it may do."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.rig import URL, Rig, open_rig
from integration.test_control_fuzz import cases, operations, send, server_errors
from phalanx.core.tenancy.roles import OF_ALL, OWNERS_MAY, PERMISSIONS, PLATFORM_WIDE, UserRole
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.server.access import Access, AccessTable, Of
from phalanx.server.app import create_app

pytestmark = pytest.mark.integration
PROJECT = "default"
ANONYMOUS, ATTEMPT, SERVICE, NO_ROLE = "anonymous", "attempt", "service account", "no role"
CALLERS = [
    ANONYMOUS,
    ATTEMPT,
    NO_ROLE,
    *(f"{where} {role}" for where in ("project", "whole") for role in UserRole),
    SERVICE,
]
Answers = list[tuple[dict[str, Any], httpx.Response]]


@cache
def documented() -> dict[tuple[str, str], frozenset[str]]:
    """The statuses that the published schema has for each operation, ranges such as `4XX` among them."""
    return {
        (one.method.upper(), one.path): frozenset(map(str, one.definition.raw["responses"]))
        for one in operations()
    }


def undocumented(answers: Answers) -> list[str]:
    """The answers with a status that the schema does not have for their operation."""
    wrong = []
    for request, answer in answers:
        known = documented()[request["operation"]]
        if not known & {str(answer.status_code), f"{answer.status_code // 100}XX"}:
            wrong.append(
                f"{answer.status_code} of {request['operation']}, which has {sorted(known)}"
            )
    return wrong


@dataclass
class Callers:
    """A control plane with a job that runs, and a token for each caller."""

    rig: Rig
    table: AccessTable
    tokens: dict[str, str] = field(default_factory=dict)

    def may(self, caller: str, access: Access) -> bool:
        """Whether a caller may succeed at a route at all."""
        if access.of is Of.OPEN:
            return True
        if access.of is Of.ATTEMPT:
            return caller == ATTEMPT
        if caller in (ANONYMOUS, ATTEMPT):
            return False
        if access.permission in OF_ALL:
            return True
        if caller == NO_ROLE:
            return False
        where, role = ("whole", "member") if caller == SERVICE else caller.split()
        granted = PERMISSIONS[UserRole(role)]
        # Owners may change their own jobs.
        inside = access.permission in granted or OWNERS_MAY.get(access.permission) in granted
        return inside and (where == "whole" or access.permission not in PLATFORM_WIDE)

    def exceeded(self, caller: str, answers: Answers) -> list[str]:
        """Successes of a caller at routes that its role does not open."""
        found = []
        for request, answer in answers:
            access = self.table.of_route[request["operation"]]
            if answer.is_success and not self.may(caller, access):
                found.append(f"{caller} may {request['operation']}: {answer.status_code}")
        return found


@contextmanager
def callers(home: Path) -> Iterator[Callers]:
    with open_rig(home) as rig:
        # Jobs of the owner of every account, so that also owners' rights are reached.
        view = rig.client.submit(
            SubmitRequest(
                spec={"schema": 1, "run": "true", "resources": {"slots_per_node": 1}}, owner="ada"
            )
        ).job
        assert view is not None
        rig.turn()
        made = Callers(rig, AccessTable(create_app(rig.context).routes))
        made.tokens = {ANONYMOUS: "", ATTEMPT: rig.supervisor(view.num).token}
        for caller in CALLERS:
            if caller not in made.tokens:
                made.tokens[caller] = _account(rig, caller)
        yield made


def _account(rig: Rig, caller: str) -> str:
    """A new account with the role of a caller; returns its token."""
    kind = "service" if caller == SERVICE else "user"
    account = rig.client.accounts.add(caller.replace(" ", "-"), kind).id
    if caller != NO_ROLE:
        where, role = ("whole", "member") if caller == SERVICE else caller.split()
        rig.client.accounts.grant(account, role, PROJECT if where == "project" else None)
    return rig.client.create_token(caller, ["admin"], principal=account).token


def requests_of(num: int, seed: int, num_samples: int) -> Iterator[tuple[str, list[Any]]]:
    """`num` requests for each caller; those with fewer rights go first, because others take rights away."""
    made = cases(num * len(CALLERS), seed, num_samples)
    for index, caller in enumerate(CALLERS):
        yield caller, made[index :: len(CALLERS)]


def fuzz(made: Callers, caller: str, requests: list[Any]) -> Answers:
    """Send requests of one caller."""
    answers: Answers = []
    with httpx.Client(base_url=URL, transport=made.rig.transport) as http:
        for count, request in enumerate(requests):
            answers.append((request, send(http, request, made.tokens[caller])))
            if count % 20 == 0:
                made.rig.turn(1)
    return answers


def judged(made: Callers, caller: str, answers: Answers) -> list[str]:
    return [*server_errors(answers), *undocumented(answers), *made.exceeded(caller, answers)]


@pytest.mark.extras
def test_no_role_makes_a_server_error_or_an_undocumented_status(tmp_path: Path) -> None:
    with callers(tmp_path / "home") as made:
        for caller, requests in requests_of(60, seed=3, num_samples=4):
            answers = fuzz(made, caller, requests)
            assert judged(made, caller, answers) == []
            kinds = Counter(answer.status_code for _, answer in answers)
            if caller == ANONYMOUS:
                assert kinds[401] > 40, kinds
            if caller == "whole admin":
                assert kinds[200] + kinds[201] > 5, kinds


def test_the_judgement_sees_a_status_and_a_right_too_many(tmp_path: Path) -> None:
    """The control."""
    request = {"operation": ("GET", "/api/v1/jobs"), "method": "GET"}
    with callers(tmp_path / "home") as made:
        teapot, found = httpx.Response(302), httpx.Response(200)
        assert undocumented([(request, teapot)]) and not undocumented([(request, found)])
        assert made.exceeded(ANONYMOUS, [(request, found)])
        assert made.exceeded(ATTEMPT, [(request, found)])
        assert not made.exceeded("project viewer", [(request, found)])
        apply = {"operation": ("POST", "/api/v1/pools/apply"), "method": "POST"}
        assert made.exceeded("project admin", [(apply, found)])
        assert not made.exceeded("whole admin", [(apply, found)])


@pytest.mark.proof
def test_a_thousand_requests_of_each_role() -> None:
    """The run of docs/proof/fuzz.md."""
    with tempfile.TemporaryDirectory(prefix="phx") as folder, callers(Path(folder) / "h") as made:
        wrong = []
        for caller, requests in requests_of(1000, seed=7, num_samples=30):
            answers = fuzz(made, caller, requests)
            kinds = Counter(answer.status_code for _, answer in answers)
            shown = "; ".join(f"{status}: {count}" for status, count in sorted(kinds.items()))
            print(f"| {caller} | {len(answers)} | {shown} |", flush=True)
            wrong += judged(made, caller, answers)
        assert wrong == []
