"""Tokens, scopes and sessions: denied by default, and a cookie is never a token."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig, sample_path, spec
from phalanx.core.contract.access import Scope, covers
from phalanx.core.tenancy.roles import SCOPES
from phalanx.errors import NotFound, PermissionDenied, ServerError, Unauthenticated
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout, ServerFile
from phalanx.sdk import PhalanxClient
from phalanx.server.access import UNKNOWN, AccessTable
from phalanx.server.app import create_app, derived_key
from phalanx.server.gate import KEY_HEADER, cookie_name
from phalanx.standalone.home import prepare_home, read_key, read_token

pytestmark = pytest.mark.integration
ORIGIN = {"Origin": URL}


def routes(rig: Rig) -> list[tuple[str, str]]:
    """Every route that is not open, the session's own among them."""
    return [key for key, one in table(rig).of_route.items() if one.needs_caller]


def table(rig: Rig) -> AccessTable:
    return AccessTable(create_app(rig.context).routes)


def needed_scope(rig: Rig, key: tuple[str, str]) -> Scope:
    return SCOPES[table(rig).of_route[key].permission]


def browse(rig: Rig, **options: object) -> httpx.Client:
    return httpx.Client(base_url=URL, transport=rig.transport, **options)  # type: ignore[arg-type]


def status(rig: Rig, method: str, path: str, headers: dict[str, str]) -> int:
    with browse(rig) as http:
        return http.request(method, sample_path(path), headers=headers).status_code


def session(rig: Rig) -> dict[str, str]:
    """The cookie header of a session that a link has opened."""
    with browse(rig) as http:
        http.get(rig.client.login_link().removeprefix(URL))
        return {"Cookie": f"{cookie_name(rig.context)}={http.cookies[cookie_name(rig.context)]}"}


def test_what_is_no_route_needs_admin(rig: Rig) -> None:
    found = table(rig)
    assert set(found.of_route) == set(rig.routes())
    for method, path in (
        ("GET", "/api/v1/a-route-of-tomorrow"),
        ("GET", "/api/v1/jobs/1/logs/x"),
        ("PUT", "/api/v1/jobs/1"),
        ("GET", "/api/v1/jobs\n"),
        ("GET", "/api/v1/jobs/"),
    ):
        assert found.find(method, path).access is UNKNOWN
    assert found.find("GET", "/api/v1/jobs/17").values == {"num": "17"}
    assert {key[1] for key, one in found.of_route.items() if not one.needs_caller} == {
        "/healthz",
        "/readyz",
        "/",
        "/ui",
        "/ui/",
        "/ui/{name}",
        "/login",
        "/login/provider",
        "/login/callback",
        "/api/v1/login",
        "/api/v1/login/device",
        "/api/v1/login/browser",
        "/api/v1/login/finish",
        "/openapi.json",
        "/api/v1/supervisors/sync",
        "/api/v1/supervisors/secrets",
        "/api/v1/supervisors/code/{digest}",
        "/api/v1/supervisors/tunnels",
        "/api/v1/supervisors/tunnels/{tunnel}",
        "/api/v1/jobs/{num}/metrics",
        "/api/v1/jobs/{num}/trainer-status",
    }


def test_a_route_that_does_not_say_what_it_needs_keeps_the_control_plane_from_starting(
    rig: Rig,
) -> None:
    app = create_app(rig.context)
    app.get("/api/v1/forgotten")(lambda: None)
    with pytest.raises(ServerError, match=r"GET /api/v1/forgotten does not say") as raised:
        AccessTable(app.routes)
    assert "openapi_extra=needs(" in (raised.value.hint or "")


def test_every_scope_at_every_route(rig: Rig) -> None:
    """The whole table: a request passes the gate exactly when its scope covers the route."""
    tokens = {scope: rig.client.create_token(scope, [scope], 3600).token for scope in sorted(Scope)}
    needed = {key: needed_scope(rig, key) for key in routes(rig)}
    wrong = []
    for method, path in needed:
        for scope, token in tokens.items():
            if path.startswith("/api/v1/tokens") and scope is Scope.ADMIN:
                continue  # changes the table itself; see the tests of rotation below
            got = status(rig, method, path, {"Authorization": f"Bearer {token}"})
            if (got not in (401, 403)) != covers([scope], needed[method, path]):
                wrong.append((method, path, scope.value, got))
    assert [one for one in wrong if one[1] != "/logout"] == []


def test_a_cookie_alone_reads(rig: Rig) -> None:
    rig.submit()
    cookie = session(rig)
    opened = {key for key in routes(rig) if status(rig, *key, cookie) not in (401, 403)}
    reads = {
        (method, path)
        for method, path in routes(rig)
        if method in ("GET", "HEAD") and covers([Scope.READ], needed_scope(rig, (method, path)))
    }
    assert opened == reads - {("GET", "/metrics")}
    assert {("GET", "/plain"), ("GET", "/jobs/{num}"), ("GET", "/api/v1/jobs")} <= opened
    value = cookie["Cookie"].partition("=")[2]
    assert TOKEN not in cookie["Cookie"]
    bearer = {"Authorization": f"Bearer {value}"}
    assert {key for key in routes(rig) if status(rig, *key, bearer) != 401} == set()
    assert len(rig.client.jobs().jobs) == 1


def test_what_another_server_of_this_machine_gets_from_the_browser_submits_nothing(
    rig: Rig,
) -> None:
    """The attack: a server on another port reads all cookies of the host, and plays them back."""
    stolen = session(rig)["Cookie"].partition("=")[2]
    for headers in (
        {"Authorization": f"Bearer {stolen}"},
        {"Cookie": f"{cookie_name(rig.context)}={stolen}"},
        {"Cookie": f"phalanx_session={stolen}"},
        {"Cookie": f"{cookie_name(rig.context)}={stolen}", **ORIGIN, KEY_HEADER: stolen},
    ):
        with browse(rig) as http:
            body = SubmitRequest(spec=spec()).model_dump(mode="json")
            assert http.post("/api/v1/jobs", json=body, headers=headers).status_code in (401, 403)
    assert rig.client.jobs().jobs == []


def test_a_session_ends(rig: Rig) -> None:
    first, second = session(rig), session(rig)
    assert first != second and status(rig, "GET", "/plain", first) == 200
    for _ in range(23):  # used, it goes on for longer than it would idle
        rig.clock.advance(30 * 60 - 61)
        assert status(rig, "GET", "/plain", first) == 200
    assert status(rig, "GET", "/plain", second) == 401
    rig.clock.advance(29 * 60)
    assert status(rig, "GET", "/plain", first) == 200
    rig.clock.advance(26 * 60)
    assert status(rig, "GET", "/plain", first) == 401, (
        "after twelve hours it ends however it is used"
    )


def test_all_sessions_are_ended_at_once(rig: Rig) -> None:
    found = [session(rig), session(rig)]
    assert rig.client.end_sessions() == 2
    assert [status(rig, "GET", "/plain", one) for one in found] == [401, 401]
    assert rig.client.end_sessions() == 0


def test_a_link_ends_and_is_no_token(rig: Rig) -> None:
    link = rig.client.login_link()
    ticket = link.partition("ticket=")[2]
    assert TOKEN not in link
    assert status(rig, "GET", "/api/v1/info", {"Authorization": f"Bearer {ticket}"}) == 401
    expires, rest = ticket.split(".", 1)
    for forged in (
        f"{int(expires) + 1}.{rest}",
        f"{expires}.0{rest[1:]}x",
        "x",
        f"{expires}.",
        ".",
    ):
        assert status(rig, "GET", f"/login?ticket={forged}", {}) == 401
    rig.clock.advance(15 * 60 + 1)
    assert status(rig, "GET", f"/login?ticket={ticket}", {}) == 401


def test_a_link_opens_one_session(rig: Rig) -> None:
    link = rig.client.login_link().removeprefix(URL)
    with browse(rig) as http:
        assert http.get(link).status_code == 303
        kept = dict(http.cookies)
        again = http.get(link)  # the same browser, as after a reload
        assert (again.status_code, dict(http.cookies)) == (303, kept)
        assert "set-cookie" not in again.headers
    assert status(rig, "GET", link, {}) == 401
    rig.clock.advance(60)
    assert status(rig, "GET", link, {}) == 401
    assert status(rig, "GET", rig.client.login_link().removeprefix(URL), {}) == 303


def test_signing_in_and_out_by_form(rig: Rig) -> None:
    reader = rig.client.create_token("ada", [Scope.READ]).token
    scraper = rig.client.create_token("prometheus", [Scope.METRICS]).token
    with browse(rig) as http:
        assert "Sign in" in http.get("/login").text
        assert http.post("/login", data={"token": reader}).status_code == 403  # without an origin
        evil = {"Origin": "http://evil.example"}
        assert http.post("/login", data={"token": reader}, headers=evil).status_code == 403
        assert http.post("/login", data={"token": "phx_x_y"}, headers=ORIGIN).status_code == 401
        assert http.post("/login", data={"token": scraper}, headers=ORIGIN).status_code == 403
        assert http.post("/login", data={"token": reader}, headers=ORIGIN).status_code == 303
        value = re.search(r'name="form" value="(\w+)"', http.get("/plain").text)
        assert value is not None
        right = {"form": value[1]}
        assert http.post("/logout", data=right, headers=evil).status_code == 403
        assert http.post("/logout", data=right).status_code == 403
        assert http.post("/logout", data={"form": "x"}, headers=ORIGIN).status_code == 403
        assert http.get("/plain").status_code == 200
        kept = dict(http.cookies)
        assert http.post("/logout", data=right, headers=ORIGIN).status_code == 303
        assert http.get("/plain").status_code == 401
        http.cookies.update(kept)
        assert http.get("/plain").status_code == 401  # ended at the server, not only in the browser


def test_a_page_of_another_site_changes_nothing_even_with_a_token(rig: Rig) -> None:
    good = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://127.0.0.1:9999"}
    assert status(rig, "POST", "/api/v1/clients/hello", good) == 403
    assert status(rig, "POST", "/api/v1/clients/hello", good | {"Origin": "null"}) == 403
    assert status(rig, "POST", "/api/v1/clients/hello", good | ORIGIN) != 403


def with_token(rig: Rig, token: str) -> PhalanxClient:
    return PhalanxClient(URL, token, transport=rig.transport)


def test_the_life_of_a_token(rig: Rig) -> None:
    made = rig.client.create_token("ci", [Scope.SUBMIT], 3600)
    assert made.token.startswith(f"phx_{made.view.id}_")
    for path in rig.platform.home.database_file.parent.iterdir():
        assert made.token.encode() not in path.read_bytes()
    with with_token(rig, made.token) as client:
        num = client.submit(SubmitRequest(spec=spec())).job
        assert num is not None and client.job(num.num).state == "queued"
        with pytest.raises(
            PermissionDenied, match="this token has submit, and GET /api/v1/tokens needs"
        ):
            client.tokens()
    assert [one.name for one in rig.client.tokens()] == ["ci"]
    again = rig.client.rotate_token(made.view.id)
    with pytest.raises(Unauthenticated), with_token(rig, made.token) as client:
        client.jobs()
    with with_token(rig, again.token) as client:
        client.jobs()
        rig.clock.advance(3601)
        with pytest.raises(Unauthenticated):
            client.jobs()
    assert rig.client.tokens() == []
    with pytest.raises(NotFound):
        rig.client.revoke_token(made.view.id)


def test_a_revoked_token_takes_its_sessions_along(rig: Rig) -> None:
    made = rig.client.create_token("ada", [Scope.READ])
    with browse(rig) as http:
        http.post("/login", data={"token": made.token}, headers=ORIGIN)
        assert http.get("/plain").status_code == 200
        rig.client.revoke_token(made.view.id)
        assert http.get("/plain").status_code == 401


def test_the_token_of_the_home_is_rotated(rig: Rig) -> None:
    home = rig.platform.home
    served = ServerFile(
        pid=1, boot_id="b", started_ticks=1, url=URL, token=TOKEN, version="0", home="x"
    )
    home.server_file.write_text(served.model_dump_json())
    reader = rig.client.create_token("ada", [Scope.READ]).token
    cookie, link = session(rig), rig.client.login_link()
    rig.submit()
    rig.turn()
    supervisor = rig.supervisor(1)
    made = rig.client.rotate_token("admin")
    with pytest.raises(Unauthenticated):
        rig.client.jobs()
    assert home.token_file.read_text().strip() == made.token
    assert stat.S_IMODE(home.token_file.stat().st_mode) == 0o600
    now = ServerFile.model_validate_json(home.server_file.read_bytes())
    assert now == served.model_copy(update={"token": made.token})
    assert status(rig, "GET", "/plain", cookie) == 401
    assert status(rig, "GET", link.removeprefix(URL), {}) == 401
    with with_token(rig, made.token) as client, with_token(rig, reader) as other:
        assert len(client.jobs().jobs) == len(other.jobs().jobs) == 1
    supervisor.ready()  # a running supervisor goes on


def test_the_key_of_supervisors_outlives_the_token(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "home")
    first = read_key(home)
    assert first == derived_key(read_token(home)), "supervisors of an older release stay known"
    home.token_file.write_text("another\n")
    assert read_key(HomeLayout(home.root)) == first
    assert stat.S_IMODE(home.key_file.stat().st_mode) == 0o600
