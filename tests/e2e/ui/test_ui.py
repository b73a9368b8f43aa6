"""The web UI in a real browser: sign in, see a job appear, and stop it by keyboard."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.harness import Platform
from e2e.ui.harness import leaves_browser, needs_chromium, script_job, signed_in
from support.prefix_proxy import PREFIX, prefixed

pytestmark = [pytest.mark.e2e, needs_chromium, leaves_browser]
KEEP_WARM = 0


@pytest.mark.extras
def test_a_job_appears_by_itself_and_is_stopped_by_keyboard_below_a_prefix(
    platform: Platform, browser: Any
) -> None:
    with prefixed(platform.client().url) as base, signed_in(browser, platform, base=base) as ui:
        page = ui.page
        assert page.url == f"{base}/ui/#/jobs" and PREFIX in page.url
        page.get_by_text("No job yet").wait_for()
        job = platform.submit(script_job("--end", "wait", "--lines", "40"))
        page.get_by_role("link", name=job).wait_for()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name=f"{job} curves").wait_for()
        platform.wait_state(job, "running")
        page.get_by_role("link", name="Logs").focus()
        page.keyboard.press("Enter")
        page.get_by_text("step 39: loss").wait_for()
        page.get_by_role("button", name="Stop…").focus()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        assert page.get_by_role("dialog").count() == 0
        assert platform.show(job).state == "running"
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Stop it").press("Enter")
        page.get_by_role("dialog").wait_for(state="detached")
        platform.wait_state(job, "cancelled")
        page.get_by_text("cancelled").first.wait_for()
        ui.clean()


def test_without_a_session_the_ui_leads_to_the_login_and_back(
    platform: Platform, browser: Any
) -> None:
    url = platform.client().url
    token = (platform.home / "token").read_text().strip()
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/#/queue")
    page.get_by_label("token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Queue").wait_for()
    assert page.url == f"{url}/ui/#/queue", "the key is not in the address any more"
    context.close()
