"""`phalanx login` over an identity provider: both flows, the pages, accounts and groups, and attacks."""

from __future__ import annotations

import base64
import hmac
import importlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt

from integration.rig import URL, Rig, open_rig
from integration.served import served
from phalanx.cli.__main__ import _code
from phalanx.errors import (
    Conflict,
    NotFound,
    PermissionDenied,
    ServerError,
    ServerUnavailable,
    Unauthenticated,
    UserError,
)
from phalanx.sdk import PhalanxClient
from phalanx.server.gate import cookie_name
from phalanx.server.settings import LoginSettings, Settings
from support.identity_provider import CLIENT, SECRET, LocalProvider, local_provider, rsa_key

pytestmark = pytest.mark.integration
login_verbs = importlib.import_module("phalanx.cli.verbs.tenancy.login")
BACK = "http://127.0.0.1:4567/callback"
ADA: dict[str, Any] = {
    "sub": "subject-1",
    "preferred_username": "ada",
    "groups": ["ml", "no name!"],
}


@dataclass
class Team:
    """A control plane with a provider."""

    rig: Rig
    provider: LocalProvider

    @property
    def calls(self) -> Any:
        return self.rig.client.accounts

    def by_code(self, **user: Any) -> str:
        """The token of a login on another device."""
        begun = self.calls.start_device_login()
        self.provider.confirm(begun.user_code, **(user or ADA))
        return self.token(begun.login)

    def token(self, login: str, **brought: str) -> str:
        made = self.calls.finish_login(login, **brought).token
        assert made is not None
        return made.token

    def by_browser(self, **user: Any) -> str:
        begun = self.calls.start_browser_login(BACK)
        self.provider.user = user or ADA
        return self.token(begun.login, **brought(self.provider.browse(begun.authorization_url)))

    def client(self, token: str) -> PhalanxClient:
        return PhalanxClient(URL, token, transport=self.rig.transport)


def brought(url: str) -> dict[str, str]:
    return {name: one[0] for name, one in parse_qs(urlsplit(url).query).items()}


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    times: list[Callable[[], float]] = []
    with local_provider(lambda: times[0]()) as provider:
        secret = tmp_path / "client"
        secret.write_text(SECRET + "\n")
        login = LoginSettings(
            issuer=provider.url,
            client_id=CLIENT,
            client_secret=f"file:{secret}",
            provider_name="Example",
            groups_claim="groups",
        )
        with open_rig(tmp_path / "home", settings=Settings(login=login)) as rig:
            times.append(lambda: rig.clock.now() / 1e6)
            yield Team(rig, provider)


def test_a_login_with_a_code_makes_an_account_with_the_roles_of_its_groups(team: Team) -> None:
    assert team.calls.login_provider().provider == "Example"
    team.calls.grant("group:ml", "member", "vision")  # before any member of it has logged in
    begun = team.calls.start_device_login()
    assert begun.user_code.startswith("ABCD") and begun.interval_s == 1
    assert not team.calls.finish_login(begun.login).slow_down
    team.provider.slow = True
    assert team.calls.finish_login(begun.login).slow_down
    team.provider.confirm(begun.user_code, **ADA)
    with team.client(team.token(begun.login)) as ada:
        me = ada.accounts.who_am_i()
        assert (me.id, me.roles) == ("user:ada", {"vision": "member"})
        assert me.credential is not None and me.credential.name == "phalanx login"
        with pytest.raises(PermissionDenied):
            ada.accounts.accounts()
        team.rig.clock.advance(12 * 3600)
        with pytest.raises(Unauthenticated):
            ada.accounts.who_am_i()
    made = team.calls.accounts()[0]
    assert (made.created_by, made.subject, made.groups) == ("login", "subject-1", ["group:ml"])
    rows = [one for one in team.calls.audit() if one.action == "POST /api/v1/login/finish"]
    said = {change.what for row in rows for change in row.changes}
    assert {"user:ada", "groups of user:ada"} <= said
    assert any(one.startswith("token ") for one in said)


def test_a_login_in_a_browser(team: Team) -> None:
    with team.client(team.by_browser()) as ada:
        assert ada.accounts.who_am_i().id == "user:ada"
        ada.revoke_token(ada.accounts.who_am_i().token)
        with pytest.raises(Unauthenticated):
            ada.accounts.who_am_i()


def test_groups_follow_the_provider_at_each_login_and_those_of_admins_stay(team: Team) -> None:
    team.by_code()
    team.calls.set_group("group:ours", ["user:ada"])
    team.by_code(**ADA | {"groups": ["new", "ours"]})
    groups = {one.id for one in team.calls.groups()}
    assert groups == {"group:new", "group:ours"}
    team.by_code(**ADA | {"groups": []})
    assert {one.id for one in team.calls.groups()} == {"group:ours"}
    with pytest.raises(PermissionDenied):
        team.by_code(**ADA | {"groups": [f"g{index}" for index in range(501)]})


def test_a_disabled_user_is_refused_and_its_tokens_end(team: Team) -> None:
    token = team.by_code()
    team.calls.change("user:ada", disabled=True)
    with team.client(token) as ada, pytest.raises(Unauthenticated):
        ada.accounts.who_am_i()
    for login in (team.by_code, team.by_browser):
        with pytest.raises(PermissionDenied, match="disabled"):
            login()
    with pytest.raises(PermissionDenied, match="disabled"):
        team.by_code(**ADA | {"preferred_username": "ada2"})  # another name, the same subject
    team.calls.change("user:ada", disabled=False)
    with team.client(token) as ada, pytest.raises(Unauthenticated):
        ada.accounts.who_am_i()
    team.by_code()
    assert [one.id for one in team.calls.accounts()] == ["user:ada"]


def test_a_name_belongs_to_one_subject(team: Team) -> None:
    team.calls.add("bob")
    bob = {"sub": "subject-2", "preferred_username": "bob"}
    with pytest.raises(PermissionDenied, match="belongs to another user"):
        team.by_code(**bob)
    team.calls.change("user:bob", subject="subject-2")
    team.by_code(**bob)
    with pytest.raises(Conflict):
        team.calls.change("user:bob", subject="subject-1") if team.by_code() else None
    with pytest.raises(PermissionDenied, match="belongs to another user"):
        team.by_code(sub="subject-3", preferred_username="ada")
    team.calls.add("subject-4")  # a name that is the subject needs no link
    team.by_code(sub="subject-4", preferred_username="subject-4")
    for name in ("admin", "", "a/b", None, "x" * 200):
        with pytest.raises(PermissionDenied):
            team.by_code(sub="subject-5", preferred_username=name)


def test_the_pages_are_opened_by_a_login(team: Team) -> None:
    with httpx.Client(base_url=URL, transport=team.rig.transport) as http:
        assert "Log in with Example" in http.get("/login").text
        sent = http.get("/login/provider")
        team.provider.user = ADA
        back = team.provider.browse(sent.headers["Location"]).removeprefix(URL)
        assert back.startswith("/login/callback?")
        with httpx.Client(base_url=URL, transport=team.rig.transport) as other:
            stolen = other.get(back)  # a browser that has begun no login
        assert stolen.status_code == 401 and "Set-Cookie" not in stolen.headers
        opened = http.get(back)
        assert opened.status_code == 200 and "SameSite=strict" in opened.headers["Set-Cookie"]
        session = http.cookies[cookie_name(team.rig.context)]
        assert http.get("/plain").status_code == 403, "an account without a role sees no jobs"
        team.calls.grant("user:ada", "viewer")
        assert http.get("/plain").status_code == 200
        bearer = {"Authorization": f"Bearer {session}"}
        assert http.get("/api/v1/jobs", headers=bearer).status_code == 401
        team.calls.change("user:ada", disabled=True)
        assert http.get("/plain").status_code == 401


def part(one: bytes) -> str:
    return base64.urlsafe_b64encode(one).rstrip(b"=").decode()


def unsigned(alg: str, claims: dict[str, Any]) -> str:
    header = {"alg": alg, "kid": "key-0"}
    return f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"


def none_algorithm(claims: dict[str, Any]) -> str:
    return f"{unsigned('none', claims)}."


def public_key_as_secret(claims: dict[str, Any]) -> str:
    text, secret = unsigned("HS256", claims), rsa_key(0).as_pem(private=False)
    return f"{text}.{part(hmac.digest(secret, text.encode(), 'sha256'))}"


def other_key(kid: str) -> Callable[[dict[str, Any]], str]:
    return lambda claims: jwt.encode({"alg": "RS256", "kid": kid}, claims, rsa_key(1))


ATTACKS: dict[str, dict[str, Any]] = {
    "wrong audience": {"claims": {"aud": "another-client"}},
    "wrong audience, with this client as the authorized party": {
        "claims": {"aud": "another-client", "azp": CLIENT}
    },
    "audience with another authorized party": {"claims": {"aud": [CLIENT, "x"], "azp": "x"}},
    "several audiences and no authorized party": {"claims": {"aud": ["x", CLIENT]}},
    "wrong issuer": {"claims": {"iss": "http://127.0.0.1:1"}},
    "no audience": {"claims": {"aud": None}},
    "expired": {"claims": {"exp": 1}},
    "no expiry": {"claims": {"exp": None}},
    "not a number": {"claims": {"exp": float("nan")}},
    "not yet valid": {"claims": {"nbf": 1 << 50}},
    "algorithm none": {"sign": none_algorithm},
    "HS256 with the public key": {"sign": public_key_as_secret},
    "unknown key": {"sign": other_key("key-1")},
    "signed by another key": {"sign": other_key("key-0")},
    "no token at all": {"sign": lambda _: "a.b.c"},
    "too long": {"claims": {"more": "a" * (100 << 10)}},
}
OF_BROWSERS: dict[str, dict[str, Any]] = {
    "another nonce": {"claims": {"nonce": "of-another-login"}},
    "no nonce": {"claims": {"nonce": None}},
}


def refused(login: Callable[[], str]) -> bool:
    try:
        login()
    except Unauthenticated:
        return True
    return False


def test_an_id_token_that_is_not_for_this_login_is_refused(team: Team) -> None:
    accepted = []
    for name, changes in (ATTACKS | OF_BROWSERS).items():
        team.provider.claims, team.provider.sign = {}, None
        for field, value in changes.items():
            setattr(team.provider, field, value)
        logins = (team.by_code, team.by_browser) if name in ATTACKS else (team.by_browser,)
        accepted += [name for one in logins if not refused(one)]
    assert accepted == []
    assert team.calls.accounts() == []


def test_keys_are_kept_and_asked_for_again_after_a_rotation(team: Team) -> None:
    team.by_code()
    team.by_code()
    assert team.provider.asked.count("/keys") == 1
    team.rig.clock.advance(61)
    team.provider.keys = [rsa_key(0), rsa_key(1)]
    team.by_code()
    assert team.provider.asked.count("/keys") == 2
    team.provider.sign = other_key("key-of-nothing")
    for _ in range(3):  # within a minute unknown ids do not make it ask again
        with pytest.raises(Unauthenticated):
            team.by_code()
    assert team.provider.asked.count("/keys") == 2
    team.provider.sign, team.provider.keys = None, [rsa_key(0)]
    team.rig.clock.advance(3601)
    team.by_code()
    team.provider.sign = other_key("key-1")  # withdrawn
    with pytest.raises(Unauthenticated):
        team.by_code()


def test_a_login_ends_once(team: Team) -> None:
    team.provider.replays = True  # a provider that takes its codes again
    begun = team.calls.start_device_login()
    team.provider.confirm(begun.user_code, **ADA)
    team.token(begun.login)
    with pytest.raises(Unauthenticated, match="ended already"):
        team.token(begun.login)
    begun = team.calls.start_browser_login(BACK)
    team.provider.user = ADA
    got = brought(team.provider.browse(begun.authorization_url))
    team.token(begun.login, **got)
    with pytest.raises(Unauthenticated, match="ended already"):
        team.token(begun.login, **got)


def test_what_a_browser_brings_belongs_to_its_login(team: Team) -> None:
    team.provider.user = ADA
    mine, theirs = (team.calls.start_browser_login(BACK) for _ in range(2))
    got = brought(team.provider.browse(theirs.authorization_url))
    with pytest.raises(Unauthenticated, match="another login"):
        team.token(mine.login, **got)
    with pytest.raises(PermissionDenied, match="invalid_grant"):  # PKCE
        team.token(mine.login, code=got["code"], state=mine.state)
    with httpx.Client(base_url=URL, transport=team.rig.transport) as http:
        sent = http.get("/login/provider")
    of_pages = sent.headers["Set-Cookie"].partition("=")[2].partition(";")[0].strip('"')
    back = brought(team.provider.browse(sent.headers["Location"]))
    with pytest.raises(Unauthenticated, match="not begun here"):
        team.token(of_pages, **back)
    changed = ("A" if mine.login[40] != "A" else "B").join((mine.login[:40], mine.login[41:]))
    for sealed in (changed, "AAAA", "", "é", mine.login[:20]):
        with pytest.raises((Unauthenticated, UserError)):
            team.token(sealed or "-", code="code", state=mine.state)
    team.rig.clock.advance(15 * 60)
    with pytest.raises(Unauthenticated, match="expired"):
        team.token(mine.login, code="code", state=mine.state)


FOREIGN = (
    "https://evil.example/callback",
    "http://evil.example:80/callback",
    "http://127.0.0.1.evil.example:80/callback",
    "http://127.0.0.1:80@evil.example/callback",
    "http://evil.example:80/callback#@127.0.0.1:80/callback",
    "http://localhost:4567/callback",
    "http://127.0.0.1/callback",
    "http://127.0.0.1:4567/other",
    "http://127.0.0.1:4567/callback?next=http://evil.example",
    "http://127.0.0.1:99999/callback",
    "https://127.0.0.1:4567/callback",
    "javascript:alert(1)",
    "",
)


def test_a_code_is_sent_to_no_other_machine(team: Team) -> None:
    for address in FOREIGN:
        with pytest.raises(UserError, match="same machine"):
            team.calls.start_browser_login(address)


def test_a_user_refuses_the_login(team: Team) -> None:
    begun = team.calls.start_device_login()
    team.provider.confirm(begun.user_code, denied=True)
    with pytest.raises(PermissionDenied, match="access_denied"):
        team.calls.finish_login(begun.login)


WRONG_DOCUMENTS = (
    ({"issuer": "https://other.example"}, ServerError),
    ({"token_endpoint": "http://other.example/token"}, ServerError),
    ({"jwks_uri": ""}, ServerError),
    ({"device_authorization_endpoint": None}, PermissionDenied),
    ({"device_authorization_endpoint": "http://127.0.0.1:1/"}, ServerUnavailable),
)


def test_a_discovery_document_that_is_wrong(team: Team) -> None:
    for document, error in WRONG_DOCUMENTS:
        team.provider.document = document
        with pytest.raises(error):
            team.calls.start_device_login()
        team.rig.clock.advance(3601)  # until it is asked for again


@pytest.mark.sqlite
def test_no_secret_of_the_provider_is_stored(team: Team) -> None:
    tokens = [team.by_code(), team.by_browser()]
    stored = b"".join(one.read_bytes() for one in (team.rig.platform.home.root / "db").iterdir())
    assert b"subject-1" in stored
    for secret in (*tokens, SECRET, "device-ABCD", "code-1", "access-of-the-provider"):
        assert secret.encode() not in stored


def test_without_a_provider_there_is_no_login(rig: Rig) -> None:
    calls = rig.client.accounts
    for call in (
        calls.login_provider,
        calls.start_device_login,
        lambda: calls.start_browser_login(BACK),
        lambda: calls.finish_login("x"),
    ):
        with pytest.raises(NotFound, match="no identity provider"):
            call()
    calls.add("ada")
    with pytest.raises(UserError, match="no identity provider"):
        calls.change("user:ada", subject="x")
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        assert "Log in with" not in http.get("/login").text


def test_the_commands_log_in_and_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Over real sockets: the code on another device, the browser, and the end of the token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    with local_provider(time.time) as provider:
        provider.user = ADA
        login = LoginSettings(issuer=provider.url, client_id=CLIENT, client_secret=SECRET)
        with served(tmp_path / "home", Settings(login=login)) as server:
            monkeypatch.setenv("PHALANX_URL", server.url)

            def confirm(seconds: float) -> None:
                """What the user does while the command waits."""
                provider.confirm(next(iter(provider.grants)).removeprefix("device-"), **ADA)

            monkeypatch.setattr(login_verbs, "time", SimpleNamespace(sleep=confirm))
            assert run_app(["login"]) == 0
            assert "enter ABCD-0" in capfd.readouterr().out
            assert run_app(["whoami"]) == 0
            said = capfd.readouterr()
            assert said.out == "user:ada\n" and "logged in with `phalanx login`" in said.err
            assert run_app(["logout"]) == 0 and run_app(["whoami"]) != 0

            def browse(url: str) -> bool:
                Thread(target=lambda: httpx.get(provider.browse(url))).start()
                return True

            monkeypatch.setattr("webbrowser.open", browse)
            assert run_app(["login", "--browser"]) == 0
            file = tmp_path / ".config/phalanx/logins.json"
            token = json.loads(file.read_text())["logins"][server.url]["token"]
            assert run_app(["logout"]) == 0
            said = capfd.readouterr()
            assert token not in said.out + said.err and token not in file.read_text()
            with PhalanxClient(server.url, token) as client, pytest.raises(Unauthenticated):
                client.accounts.who_am_i()


def run_app(words: list[str]) -> int:
    return _code(words)
