"""The HTTP side: who may come in, what is refused and how, and the client's view of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig, open_rig, sample_path, spec
from phalanx.errors import (
    NotFound,
    ServerError,
    ServerUnavailable,
    SpecInvalid,
    StoreUnavailable,
    TooManyRequests,
    UserError,
)
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.sdk import PhalanxClient
from phalanx.server.gate import cookie_name, error_response
from phalanx.server.settings import ApiSettings, Settings
from phalanx.services.queries import views

pytestmark = pytest.mark.integration


def call(rig: Rig, method: str, path: str, headers: dict[str, str] | None = None, **rest):
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        return http.request(method, path, headers=headers or {}, **rest)


# Open to everybody: they hide nothing, or check a token of another kind by themselves.
_OPEN = {
    "/healthz": 200,
    "/readyz": 200,
    "/openapi.json": 200,
    "/": 303,
    "/ui": 303,
    "/ui/": 200,
    "/ui/{name}": 404,
    "/login": 200,
    "/login/callback": 401,  # it needs the cookie of a login that began
    "/login/provider": 404,  # no provider is configured here
    "/api/v1/login": 404,
    "/api/v1/login/device": 404,
    "/api/v1/login/browser": 422,
    "/api/v1/login/finish": 422,
    "/api/v1/supervisors/code/{digest}": 422,
    "/api/v1/supervisors/secrets": 422,
    "/api/v1/supervisors/tunnels": 422,
    "/api/v1/supervisors/tunnels/{tunnel}": 422,
}
_REPORTS = ("/api/v1/jobs/{num}/metrics", "/api/v1/jobs/{num}/trainer-status")


def routes(rig: Rig) -> list[tuple[str, str]]:
    """Every method and path that the application knows, pages and documentation among them."""
    found = rig.routes()
    assert len(found) > 35 and {"/plain", "/metrics", "/jobs/{num}"} <= {path for _, path in found}
    assert set(_OPEN) <= {path for _, path in found}
    return found


def test_every_route_is_closed_to_all_but_its_own_callers(rig: Rig) -> None:
    """Whoever adds a route gets it closed: only the client's token opens, the cookie only for reading."""
    rig.submit()
    rig.turn()
    supervisor = rig.supervisor(1).token
    callers = {
        "nobody": {},
        "wrong token": {"Authorization": "Bearer wrong"},
        "empty token": {"Authorization": "Bearer "},
        "other scheme": {"Authorization": f"Basic {TOKEN}"},
        "a supervisor": {"Authorization": f"Bearer {supervisor}"},
        "wrong cookie": {"Cookie": f"{cookie_name(rig.context)}=wrong"},
        "the supervisor's cookie": {"Cookie": f"{cookie_name(rig.context)}={supervisor}"},
        "the token as a cookie": {"Cookie": f"{cookie_name(rig.context)}={TOKEN}"},
    }
    for method, path in routes(rig):
        real = sample_path(path)
        for who, headers in callers.items():
            status = call(rig, method, real, headers).status_code
            wanted = _OPEN.get(path, 401)
            if (method, path) == ("POST", "/login"):
                wanted = 403  # a form has to come from a page of this server
            if method == "POST" and path in _REPORTS:
                wanted = 422  # they check the token of a rank by themselves, behind the body
            if path == "/api/v1/supervisors/sync" and who == "a supervisor":
                wanted = 422  # its body is read only now, and says nothing
            assert status == wanted, (method, path, who, status)
    assert rig.job(1).state == "starting"  # and nothing was done


#: What a path has to be asked with, by its last word.
_QUERIES = {"reconciliation": "?month=2026-11", "metrics": "?job=1&name=loss"}


def test_the_token_opens_what_is_closed(rig: Rig) -> None:
    """The guard of the test above, off."""
    good = {"Authorization": f"Bearer {TOKEN}"}
    for method, path in routes(rig):
        if method == "GET" and "{" not in path and path not in _OPEN:
            query = _QUERIES.get(path.rpartition("/")[2], "")
            status = call(rig, method, path + query, good).status_code
            assert status == 200, path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_other_host_names_are_refused(rig: Rig, host: str) -> None:
    good = {"Authorization": f"Bearer {TOKEN}"}
    assert call(rig, "GET", "/api/v1/info", good | {"Host": host}).status_code == 403
    assert call(rig, "GET", "/healthz", {"Host": host}).status_code == 403
    for own in ("localhost:9", "127.0.0.1:1", "[::1]:9"):
        assert call(rig, "GET", "/api/v1/info", good | {"Host": own}).status_code == 200


def test_a_spec_is_refused_with_every_problem(rig: Rig) -> None:
    bad = spec(pritority=1, resources={"nodes": 0})
    with pytest.raises(SpecInvalid) as caught:
        rig.client.submit(SubmitRequest(spec=bad))
    problems = {one.path: one.message for one in caught.value.problems}
    assert "did you mean priority" in problems["pritority"]
    assert "resources.nodes" in problems


@pytest.mark.parametrize(
    ("resources", "path", "says"),
    [
        ({"slots_per_node": 9}, "resources.slots_per_node", "the largest of any pool has 4"),
        ({"nodes": 3, "slots_per_node": 2}, "resources.nodes", "at most 2 × 2 slots"),
        ({"cpus": 64}, "resources.cpus", "has 4"),
    ],
)
def test_what_never_fits_is_refused_at_submit(rig: Rig, resources, path: str, says: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        rig.client.submit(SubmitRequest(spec=spec(resources=resources)))
    (problem,) = caught.value.problems
    assert problem.path == path and says in problem.message
    assert rig.client.jobs().jobs == []


def test_unknown_pools_are_named(rig: Rig) -> None:
    with pytest.raises(SpecInvalid, match="known: local"):
        rig.client.submit(SubmitRequest(spec=spec(pool="gpu")))


def test_a_dry_run_writes_nothing(rig: Rig) -> None:
    answer = rig.client.submit(SubmitRequest(spec=spec()), dry_run=True)
    assert answer.job is None and answer.spec["grace"] == "30s"
    assert rig.client.jobs().jobs == []


def test_code_is_uploaded_once_and_needed(rig: Rig) -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w"):
        pass
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(NotFound, match="has not been uploaded"):
        rig.client.submit(SubmitRequest(spec=spec(), code=digest))
    assert not rig.client.has_code(digest)
    rig.client.put_code(digest, content)
    rig.client.put_code(digest, content)
    assert rig.client.has_code(digest)
    with pytest.raises(UserError, match="digest"):
        rig.client.put_code("1" * 64, content)
    rig.client.submit(SubmitRequest(spec=spec(), code=digest))


def test_run_jobs_bring_their_environment_and_submit_jobs_do_not(rig: Rig) -> None:
    env = {"A": "1", "PATH": "/mine"}
    run = SubmitRequest(
        spec=spec(env={"B": "2"}, resources={}), kind="run", caller_cwd="/", caller_env=env
    )
    rig.client.submit(run)
    rig.client.submit(run.model_copy(update={"kind": "submit"}))
    rig.turn()
    first, second = rig.supervisor(1).assignment, rig.supervisor(2).assignment
    assert (first.env, first.cwd) == ({"A": "1", "PATH": "/mine", "B": "2"}, "/")
    assert "A" not in second.env and second.env["B"] == "2"
    assert second.cwd == second.workdir != "/"
    with pytest.raises(UserError, match="caller_cwd"):
        rig.client.submit(run.model_copy(update={"caller_cwd": None}))


def test_a_page_of_jobs_and_why_one_waits(rig: Rig) -> None:
    for _ in range(3):
        rig.submit()
    rig.turn()
    page = rig.client.jobs(limit=2)
    assert [one.num for one in page.jobs] == [3, 2] and page.cursor is not None
    page = rig.client.jobs(limit=2, cursor=page.cursor)
    assert ([one.state for one in page.jobs], page.cursor) == (["starting"], None)
    assert [one.num for one in rig.client.every_job(limit=2, sort="num")] == [1, 2, 3]
    assert page.jobs[0].url.endswith("/jobs/1")
    waiting = rig.job(2)
    assert waiting.pending_reason is not None and waiting.pending_reason.message
    assert [one.num for one in rig.client.jobs(states=["queued"]).jobs] == [3, 2]
    with pytest.raises(UserError, match="should be 'waiting', 'queued'"):
        rig.client.jobs(states=["lost"])


def test_nonsense_gets_one_clear_message(rig: Rig) -> None:
    good = {"Authorization": f"Bearer {TOKEN}"}
    answer = call(rig, "POST", "/api/v1/jobs/1/stop", good, json={"goal": "explode"})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "goal"
    assert call(rig, "GET", "/api/v1/nowhere", good).json()["code"] == "not_found"
    assert call(rig, "GET", "/api/v1/jobs/x", good).status_code == 422
    big = good | {"Content-Length": str(1 << 40)}
    assert call(rig, "POST", "/api/v1/jobs", big, content=b"{}").status_code == 413
    assert call(rig, "DELETE", "/api/v1/jobs/1", good).json()["code"] == "not_found"
    assert call(rig, "PUT", "/api/v1/jobs/1", good).json()["code"] == "invalid"
    for path in (f"/api/v1/jobs/{10**30}", f"/api/v1/jobs?array={10**30}"):
        answer = call(rig, "GET", path, good)
        assert (answer.status_code, answer.json()["code"]) == (422, "spec_invalid")


def test_a_missing_token_is_asked_for_and_a_passing_error_says_when_to_try_again(rig: Rig) -> None:
    """401 with the scheme for a token that is missing or wrong; 403 is left for lack of rights."""
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = call(rig, "GET", "/api/v1/jobs", headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="phalanx"'
    for error in (StoreUnavailable("the database is locked"), TooManyRequests("too many")):
        answer = error_response(error)
        assert (answer.status_code, answer.headers["Retry-After"]) == (error.http_status, "2")
    assert "Retry-After" not in error_response(UserError("no")).headers
    quoted = error_response(UserError("no file called \udcff\0"))
    assert quoted.status_code == 400 and json.loads(quoted.body)["message"]


def test_a_bug_has_the_body_of_every_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(views, "job_view", broken)
    with pytest.raises(ServerError, match="failed because of a bug: ZeroDivisionError") as caught:
        rig.client.job(1)
    assert "log" in str(caught.value) and "secret" not in str(caught.value)


def test_a_body_that_does_not_say_how_large_it_is_is_bounded_all_the_same(tmp_path: Path) -> None:
    api = ApiSettings(max_body_bytes=1000)

    def chunks() -> Iterator[bytes]:
        yield from (b" " * 100 for _ in range(100))

    with open_rig(tmp_path / "home", settings=Settings(api=api)) as rig:
        good = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        answer = call(rig, "POST", "/api/v1/jobs", good, content=chunks())
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert "larger than 1.0 KB" in answer.json()["message"]
        whole = SubmitRequest(spec=spec()).model_dump_json().encode()
        assert call(rig, "POST", "/api/v1/jobs", good, content=iter([whole])).status_code == 201


def test_no_server_is_said_so() -> None:
    with PhalanxClient("http://127.0.0.1:9", "x") as client:
        assert not client.is_healthy()
        with pytest.raises(ServerUnavailable, match="no server answers") as caught:
            client.info()
    assert caught.value.retryable and "phalanx up" in str(caught.value)


def test_something_else_answers() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>hi"))
    broken = httpx.MockTransport(lambda request: httpx.Response(502, text="bad gateway"))
    with PhalanxClient("http://x", "t", transport=broken) as client:
        with pytest.raises(Exception, match="answered 502") as caught:
            client.info()
        assert caught.value.hint and "Phalanx server" in caught.value.hint
    with PhalanxClient("http://x", "t", transport=transport) as client:
        assert not client.is_healthy()
        with pytest.raises(ServerError, match="not one of a Phalanx server"):
            client.info()


def test_gauges(rig: Rig) -> None:
    rig.submit()
    text = call(rig, "GET", "/metrics", {"Authorization": f"Bearer {TOKEN}"}).text
    assert 'phalanx_jobs{state="queued"} 1' in text
    assert 'phalanx_pool_slots_free{pool="local"} 4' in text
