"""Every screen in light and dark: nothing serious from axe-core, nothing foreign, no policy broken.

`PHALANX_UI_SHOTS=FOLDER` writes a screenshot of each one there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.harness import Platform
from e2e.ui.harness import AXE, leaves_browser, needs_chromium, script_job, signed_in

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.timeout(1200),
    needs_chromium,
    leaves_browser,
    pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci --prefix web"),
]
KEEP_WARM = 0
SHOTS = os.environ.get("PHALANX_UI_SHOTS")
SIZE = {"width": 1280, "height": 800}


@dataclass
class Jobs:
    """Labels of the jobs that the screens show."""

    running: str
    failed: str
    waiting: str

    def screens(self) -> dict[str, str]:
        run = f"#/jobs/{self.running[2:]}"
        return {
            "jobs": "#/jobs",
            "jobs-empty": "#/jobs?q=state%3Apaused",
            "run": f"{run}/overview",
            "run-failed": f"#/jobs/{self.failed[2:]}/overview",
            "curves": f"{run}/curves?smooth=0.9",
            "logs": f"{run}/logs",
            "logs-search": f"{run}/logs?text=step+3",
            "timeline": f"{run}/timeline",
            "ranks": f"{run}/ranks",
            "checkpoints": f"{run}/checkpoints",
            "why": f"#/jobs/{self.waiting[2:]}/why",
            "record": f"{run}/record",
            "queue": "#/queue",
            "cluster": "#/cluster",
            "studies": "#/studies",
            "cost": "#/cost",
            "compare": f"#/compare?jobs={self.running[2:]},{self.failed[2:]}",
            "admin": "#/admin",
            "missing": "#/jobs/9999",
        }


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Jobs:
    running = platform.submit(
        script_job("--steps", 10000, "--lines", 500, "--end", "wait", slots=2, name="gpt-small")
    )
    failed = platform.submit(script_job("--steps", 3000, "--end", "fail", name="gpt-small-lr3e-4"))
    platform.wait_state(running, "running")
    platform.wait_state(failed, "failed")
    waiting = platform.submit(script_job(slots=4, name="eval-suite", priority=40))
    client = platform.client()
    client.logs(int(running[2:]), wait_s=20)
    return Jobs(running, failed, waiting)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_screen(platform: Platform, browser: Any, jobs: Jobs, theme: str) -> None:
    found = []
    with signed_in(browser, platform, color_scheme=theme, viewport=SIZE) as ui:
        for name, address in jobs.screens().items():
            if name == "missing":
                ui.page.evaluate("to => { location.hash = to }", address)
                ui.page.get_by_role("alert").wait_for()
            else:
                ui.show(address)
            if name in ("run", "curves"):
                ui.page.locator("canvas").first.wait_for()
            if SHOTS:
                ui.page.wait_for_timeout(700)
                ui.page.screenshot(path=str(Path(SHOTS) / f"{name}-{theme}.png"))
            found += [(name, *one) for one in _serious(ui.page)]
        assert found == []
        ui.clean()


def _serious(page: Any) -> list[tuple[str, str]]:
    page.evaluate(AXE.read_text())
    report = page.evaluate("axe.run().then(one => JSON.stringify(one.violations))")
    return [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in json.loads(report)
        if one["impact"] in ("serious", "critical")
    ]


def test_a_curve_says_what_it_leaves_out_and_a_zoom_asks_the_server_again(
    platform: Platform, browser: Any, jobs: Jobs
) -> None:
    with signed_in(browser, platform, viewport=SIZE) as ui:
        ui.show(f"#/jobs/{jobs.running[2:]}/curves?find=loss")
        page = ui.page
        said = page.locator(".said-of")
        said.get_by_text("1,000 of 9,997 points").wait_for()
        box = page.locator(".u-over").bounding_box()
        middle = box["y"] + box["height"] / 2
        with page.expect_response(lambda one: "after_step=" in one.url and "to_step=" in one.url):
            page.mouse.move(box["x"] + box["width"] * 0.5, middle)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] * 0.55, middle, steps=5)
            page.mouse.up()
        assert "from=" in page.url and "to=" in page.url, "the zoom is in the address"
        page.get_by_role("button", name="Table").click()
        page.get_by_role("region", name="Values").get_by_role("row").nth(5).wait_for()
        page.get_by_role("button", name="Show all").click()
        said.get_by_text("1,000 of 9,997 points").wait_for()
        ui.clean()


def test_logs_have_true_counts_and_following_leaves_the_scroll_alone(
    platform: Platform, browser: Any, jobs: Jobs
) -> None:
    with signed_in(browser, platform, viewport=SIZE) as ui:
        page = ui.page
        ui.show(f"#/jobs/{jobs.running[2:]}/logs?text=step+3")
        # 3, 30 to 39 and 300 to 399: two ranks say each.
        page.get_by_text("222 lines match").wait_for()
        page.get_by_label("Level").select_option("warning")
        page.get_by_label("Find").fill("")
        page.get_by_text("2 lines match").wait_for()
        ui.clean()
