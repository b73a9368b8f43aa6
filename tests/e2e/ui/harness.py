"""A browser that watches what a page of the web UI does: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from e2e.platform.harness import Platform

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs the package playwright: make install"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)
# The browser has threads, processes and descriptors of its own, and ends with the module.
leaves_browser = pytest.mark.leaves("the browser is shared by the tests of a module")
# Screenshots show paths: the script is copied to a place that says nothing about the machine.
SCRIPTS = Path(tempfile.gettempdir()) / "train"
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (one) => violations.push(one.violatedDirective));
"""


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; it is not the one of Playwright, which would have to be downloaded."""
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Any
    host: str
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def show(self, fragment: str) -> None:
        """Go to a screen, and wait until it has loaded."""
        self.page.evaluate("to => { location.hash = to }", fragment)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is said to be loading."""
        loading = "Loading…|loading…|Searching…"
        self.page.wait_for_selector("main h1")
        self.page.wait_for_function(
            f"() => !/{loading}/.test(document.querySelector('main').textContent)"
        )

    def clean(self) -> None:
        """Fail where the page has asked a foreign host, broken its policy, or raised an error."""
        assert self.foreign == []
        assert self.page.evaluate("violations") == []
        assert self.errors == []


@contextmanager
def signed_in(
    browser: Any, platform: Platform, *, base: str = "", **options: Any
) -> Iterator[Watched]:
    """A page behind a login link, with every request to another host refused and recorded."""
    context = browser.new_context(**options)
    page = context.new_page()
    link = platform.client().login_link()
    server = urlsplit(link)
    address = f"{base}{server.path}?{server.query}" if base else link
    host = urlsplit(address).netloc
    watched = Watched(page, host)

    def route(one: Any) -> None:
        if urlsplit(one.request.url).netloc in (host, ""):
            one.continue_()
        else:
            watched.foreign.append(one.request.url)
            one.abort()

    context.route("**/*", route)
    page.add_init_script(_WATCH)
    page.on("pageerror", lambda one: watched.errors.append(str(one)))
    page.goto(address)
    watched.settle()
    try:
        yield watched
    finally:
        context.close()


def script_job(*flags: object, slots: int = 1, **spec: Any) -> dict[str, Any]:
    """A job that runs `curve_job.py`."""
    SCRIPTS.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("curve_job.py"), SCRIPTS)
    return {
        "name": "curves",
        "run": " ".join(["python3", "curve_job.py", *map(str, flags)]),
        "workdir": str(SCRIPTS),
        "framework": "none",
        "resources": {"nodes": 1, "slots_per_node": slots},
        **spec,
    }
