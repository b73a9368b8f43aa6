"""The pages: behind the token, without scripts, and safe whatever a job prints."""

from __future__ import annotations

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.queries import views

pytestmark = pytest.mark.integration


@pytest.fixture
def browser(rig: Rig):
    with httpx.Client(base_url=URL, transport=rig.transport, follow_redirects=True) as http:
        yield http


def sign_in(rig: Rig, browser: httpx.Client) -> httpx.Response:
    return browser.get(rig.client.login_link().removeprefix(URL))


def test_a_link_opens_a_session(rig: Rig, browser: httpx.Client) -> None:
    assert browser.get("/plain").status_code == 401
    assert browser.get("/login", params={"ticket": "1.wrong"}).status_code == 401
    assert browser.get("/login", params={"token": TOKEN}).url.path == "/login"
    assert browser.get("/plain").status_code == 401
    answer = sign_in(rig, browser)
    assert (answer.status_code, answer.url.path) == (200, "/ui/")
    flags = answer.history[0].headers["set-cookie"].lower()
    assert "httponly" in flags and "samesite=strict" in flags and "max-age=43200" in flags
    plain = browser.get("/plain")
    assert "No job yet." in plain.text
    assert "default-src 'none'" in plain.headers["content-security-policy"]


def test_the_story_of_a_long_job_ends_with_its_newest_events(
    rig: Rig, browser: httpx.Client
) -> None:
    num = rig.submit()
    notes = [Note("warned", 1, 0, {"message": str(number)}) for number in range(10_100)]
    rig.store.transact(lambda tx: commit_events(tx, num, notes, rig.clock.now(), "test"))
    rig.client.stop(num)
    found = views.last_events(rig.platform, num, 3)
    assert [one.kind for one in found] == ["warned", "warned", "stop_requested"]
    sign_in(rig, browser)
    assert "stop requested" in browser.get(f"/jobs/{num}").text


def test_a_job_is_shown_and_nothing_of_it_is_run(rig: Rig, browser: httpx.Client) -> None:
    evil = "<script>alert(1)</script>"
    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    for step in range(5):
        rig.clock.advance(1)
        supervisor.step(0, step, loss=1 / (step + 1))
    supervisor.log(0, f"{evil}\n".encode())
    supervisor.failed(message=evil, traceback=evil)
    sign_in(rig, browser)
    front, page = browser.get("/plain").text, browser.get(f"/jobs/{num}").text
    assert f'"jobs/{num}"' in front and "digits" in front
    assert "<svg" in page and "loss" in page and "rank failed" in page
    assert page.count("&lt;script&gt;") >= 3
    assert "<script" not in front + page
    assert browser.get("/jobs/99").status_code == 404
    led = browser.get("/", params={"job": f"j-{num}"}, follow_redirects=False)
    assert (led.status_code, led.headers["location"]) == (303, f"ui/#/jobs/{num}")
    lost = browser.get("/", params={"job": "//elsewhere"}, follow_redirects=False)
    assert lost.headers["location"] == "ui/"
