"""The web UI's files and sessions: what browsers may keep and load, and what a cookie may change."""

from __future__ import annotations

import re

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig, sample_path, spec
from phalanx.core.contract.access import Scope, covers
from phalanx.core.tenancy.roles import SCOPES
from phalanx.server.access import AccessTable
from phalanx.server.app import create_app
from phalanx.server.gate import KEY_HEADER, cookie_name
from phalanx.server.web.assets import POLICY, assets

pytestmark = pytest.mark.integration
OWN = {"Origin": URL, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def browser(rig: Rig):
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        yield http


def sign_in(browser: httpx.Client, token: str = TOKEN) -> dict[str, str]:
    """Open a session; returns the header with the key of its changes."""
    answer = browser.post("/login", data={"token": token}, headers={"Origin": URL})
    assert answer.status_code == 303, answer.text
    path, _, key = answer.headers["location"].partition("#key=")
    assert path == "ui/" and re.fullmatch("[0-9a-f]{64}", key)
    return {KEY_HEADER: key}


def submit(browser: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    return browser.post("/api/v1/jobs", json={"spec": spec()}, headers=headers)


def test_files_with_a_digest_are_kept_and_the_index_is_asked_for_again(
    browser: httpx.Client,
) -> None:
    index = browser.get("/ui/")
    assert index.headers["cache-control"] == "no-cache"
    assert index.headers["content-security-policy"] == POLICY
    assert index.headers["content-encoding"] == "gzip"
    linked = re.findall(r'(?:src|href)="\./([^"]+)"', index.text)
    assert {one.rpartition(".")[2] for one in linked} == {"js", "css", "svg"}
    for name in assets():
        answer = browser.get(f"/ui/{name}", headers={"Accept-Encoding": "identity"})
        assert answer.status_code == 200 and "content-encoding" not in answer.headers
        assert answer.content == assets()[name].plain
        kept = "immutable" in answer.headers["cache-control"]
        assert kept == (re.search(r"-[\w-]{8}\.(js|css)$", name) is not None), name
    assert browser.get("/ui/index-gone.js").status_code == 404
    assert browser.get("/ui/..%2Flogin.py").status_code == 401
    for path, to in (("/", "ui/"), ("/?job=j-7", "ui/#/jobs/7"), ("/ui", "ui/")):
        assert browser.get(path).headers["location"] == to


def test_every_address_of_a_sign_in_is_relative(browser: httpx.Client) -> None:
    """A proxy may serve the control plane below a prefix."""
    page = browser.get("/login").text
    assert 'action="login"' in page and not re.search(r'(?:href|action|src)="/', page)
    key = sign_in(browser)
    plain = browser.get("/plain").text
    assert not re.search(r'(?:href|action|src)="/', plain)
    answer = browser.post("/logout", headers={**OWN, **key})
    assert (answer.status_code, answer.headers["location"]) == (303, "login")
    assert browser.get("/api/v1/whoami").status_code == 401


def test_a_session_reads_and_changes_only_with_its_key_and_from_its_own_page(
    rig: Rig, browser: httpx.Client
) -> None:
    key = sign_in(browser)
    assert browser.get("/api/v1/jobs").status_code == 200
    assert browser.get("/api/v1/whoami").json()["scopes"] == ["read"]
    assert browser.get("/api/v1/whoami", headers=key).json()["scopes"] == ["submit"]
    refused = {
        "no key": (401, OWN),
        "a wrong key": (401, {**OWN, KEY_HEADER: "0" * 64}),
        "another site": (403, {**key, "Origin": URL, "Sec-Fetch-Site": "cross-site"}),
        "another port of this machine": (403, {**key, "Sec-Fetch-Site": "same-site"}),
        "another origin": (403, {**key, "Origin": "http://127.0.0.1:9"}),
        "no origin at all": (403, key),
    }
    for name, (status, headers) in refused.items():
        assert submit(browser, headers).status_code == status, name
    assert rig.client.jobs().jobs == []
    for headers in (OWN, {"Origin": URL}, {"Sec-Fetch-Site": "same-origin"}):
        assert submit(browser, {**headers, **key}).status_code == 201
    stopped = browser.post("/api/v1/jobs/1/stop", json={"goal": "cancel"}, headers={**OWN, **key})
    assert stopped.status_code == 200


def test_pages_of_other_sites_read_nothing_with_a_session(browser: httpx.Client) -> None:
    sign_in(browser)
    for site, status in (("same-site", 403), ("cross-site", 403), ("none", 200)):
        assert browser.get("/api/v1/jobs", headers={"Sec-Fetch-Site": site}).status_code == status


def test_the_key_is_of_one_session_and_does_not_follow_from_the_cookie(
    rig: Rig, browser: httpx.Client
) -> None:
    """A server on another port gets the cookie; neither a route nor arithmetic gives it the key."""
    own = sign_in(browser)
    stolen = browser.cookies[cookie_name(rig.context)]
    with httpx.Client(base_url=URL, transport=rig.transport) as thief:
        thief.cookies.set(cookie_name(rig.context), stolen)
        for path in ("/login?ticket=1.2", "/ui/", "/plain", "/api/v1/whoami", "/api/v1/info"):
            answer = thief.get(path)
            assert own[KEY_HEADER] not in answer.text + str(answer.headers), path
    with httpx.Client(base_url=URL, transport=rig.transport) as other:
        theirs = sign_in(other)
    assert theirs != own
    assert submit(browser, {**OWN, **theirs}).status_code == 401


def test_a_session_does_no_more_than_the_token_that_opened_it(
    rig: Rig, browser: httpx.Client
) -> None:
    token = rig.client.create_token("reader", [Scope.READ], 3600).token
    key = sign_in(browser, token)
    assert browser.get("/api/v1/jobs").status_code == 200
    assert submit(browser, {**OWN, **key}).status_code == 403
    table = AccessTable(create_app(rig.context).routes)
    full = sign_in(browser)
    for (method, path), one in table.of_route.items():
        needs_more = not covers([Scope.SUBMIT], SCOPES[one.permission])
        if one.needs_caller and needs_more and path.startswith("/api/v1/"):
            answer = browser.request(method, sample_path(path), headers={**OWN, **full})
            assert answer.status_code == 403, (method, path)
