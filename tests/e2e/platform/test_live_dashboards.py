"""Every panel has data in a real Prometheus, and panels say what the API says.

A control plane runs a gang of three ranks: its newest checkpoint is corrupted, a rank is killed, and a job
of higher priority preempts it. Devices and NVIDIA's exporter come from an exposition in a file.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.platform.harness import BIN, HERE, Platform, corrupt_newest
from phalanx.kit.text import parse_job_label
from phalanx.launch.ports import free_port
from support.promql import without_variables
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from dashboards.shipped import panels  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.extras,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="needs prometheus: apt-get install prometheus"
    ),
]
KEEP_WARM = 0
RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "exposition-devices.prom"
SCRAPE_S = STEP_S = 1
#: What Grafana takes for `$__rate_interval`.
RATE_INTERVAL_S = max(4 * SCRAPE_S, STEP_S + SCRAPE_S)


@contextmanager
def serving(text: bytes) -> Iterator[int]:
    """A target that answers every scrape with this text."""

    class Target(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Prometheus:
    """A running Prometheus, asked over its API."""

    http: httpx.Client
    began: float

    def now(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The values of a query by their labels; none while nothing answers."""
        try:
            answer = self.http.get("/api/v1/query", params={"query": query})
        except httpx.HTTPError:
            return {}
        if answer.status_code == 503:  # it starts
            return {}
        found = answer.raise_for_status().json()["data"]["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}

    def curves(self, query: str) -> list[list[float]]:
        """The finite points of each series of a query, over the whole time."""
        asked = {"query": query, "start": self.began, "end": time.time(), "step": STEP_S}
        answer = self.http.get("/api/v1/query_range", params=asked)
        assert answer.status_code == 200, (query, answer.text)
        return [
            [value for _, text in one["values"] if math.isfinite(value := float(text))]
            for one in answer.json()["data"]["result"]
        ]


@contextmanager
def scraping(folder: Path, platform: Platform, recorded: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the platform and the exposition of devices each second."""
    with platform.client() as client:
        target = re.sub(r"^https?://|/$", "", str(client.url))
    token = folder / "token"
    words = ("token", "create", "--scope", "metrics", "--name", "prometheus")
    token.write_text(platform.run(*words).stdout.strip())
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [
            {
                "job_name": "phalanx",
                "authorization": {"credentials_file": str(token)},
                "static_configs": [{"targets": [target]}],
            },
            {"job_name": "nodes", "static_configs": [{"targets": [f"127.0.0.1:{recorded}"]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    args = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series"]
    args += [f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *args], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield Prometheus(http, time.time())
    finally:
        process.terminate()
        process.wait(30)


@dataclass
class Story:
    """What has happened: the jobs, and the Prometheus that saw it."""

    platform: Platform
    prometheus: Prometheus
    low: str
    high: str


@pytest.fixture(scope="module")
def story(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("prometheus")
    projects = folder / "projects.yaml"
    projects.write_text(
        yaml.safe_dump({"schema": 1, "projects": [{"name": "default", "max_slots": 4}]})
    )
    platform.run("projects", "apply", "-f", projects)
    platform.run("prices", "set", "slot", "3600")
    with serving(RECORDED.read_bytes()) as recorded, scraping(folder, platform, recorded) as found:
        wait_until(lambda: found.now("phalanx_leader"), "the first scrape")
        go = folder / "go"
        low = platform.submit(
            {
                "name": "low",
                "run": f"{BIN / 'python'} dashboard_job.py --until={go}",
                "workdir": str(HERE),
                "priority": 30,
                "resources": {"slots_per_node": 3},
                "checkpoint": {"every": "10 steps"},
            }
        )
        wait_until(
            lambda: found.now("phalanx_checkpoints_total{outcome='committed'} >= 3"), "saves"
        )
        corrupt_newest(platform, low)
        wait_until(lambda: found.now("phalanx_job_restarts_total == 1"), "the restart")
        wait_until(lambda: found.now("phalanx_host_cpu_ratio"), "what the node uses")
        before = platform.show(low).progress.step or 0
        wait_until(lambda: (platform.show(low).progress.step or 0) > before + 15, "steps after it")
        wait = f"until [ -e {go} ]; do sleep 0.1; done"
        spec = {"framework": "none", "run": ["sh", "-c", wait], "resources": {"slots_per_node": 3}}
        high = platform.submit({"name": "high", "priority": "high", **spec})
        platform.wait_state(high, "running")
        wait_until(lambda: found.now("phalanx_preemptions_total{cause='preempted'} == 1"), "it")
        go.touch()
        platform.wait_state(low, "succeeded")
        wait_until(lambda: found.now("phalanx_jobs_finished_total{state='succeeded'} == 2"), "ends")
        last = found.now("phalanx_scrape_seconds")
        wait_until(lambda: found.now("phalanx_scrape_seconds") != last, "one more scrape")
        yield Story(platform, found, low, high)


def asked(query: str) -> str:
    """The query of a panel as Grafana would send it."""
    return without_variables(query, f"{RATE_INTERVAL_S}s", "10m")


def test_every_panel_has_data(story: Story) -> None:
    empty = []
    for panel in panels():
        for query in panel.queries:
            curves = story.prometheus.curves(asked(query))
            if not any(len(points) >= 2 for points in curves):
                empty.append(f"{panel.name}: {query}")
    assert empty == []


def test_a_panel_of_another_name_has_none(story: Story) -> None:
    (panel,) = (one for one in panels() if one.name == "Phalanx: training / Curves / Loss")
    (query,) = panel.queries
    assert story.prometheus.curves(asked(query))
    assert story.prometheus.curves(asked(query.replace("training_loss", "training_los"))) == []


class Panels:
    """The values of panels, by their titles."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._queries = {one.name.removeprefix("Phalanx: "): one.queries for one in panels()}

    def now(self, name: str, at: int = 0, **labels: str) -> float:
        """The newest value of one series of a panel; `at` is the number of the query."""
        found = self._prometheus.now(asked(self._queries[name][at]))
        fits = [value for key, value in found.items() if labels.items() <= dict(key).items()]
        assert len(fits) == 1, (name, labels, found)
        return fits[0]

    def most(self, name: str, at: int = 0) -> float:
        """The largest value over the whole time."""
        curves = self._prometheus.curves(asked(self._queries[name][at]))
        return max(max(points) for points in curves if points)


def about(value: float) -> Any:
    """An increase is extrapolated to the ends of its window, by less than a tenth here."""
    return pytest.approx(value, rel=0.1)


def test_panels_say_what_the_api_says(story: Story) -> None:
    shown = Panels(story.prometheus)
    low = story.platform.show(story.low)
    num = parse_job_label(story.low)
    assert num is not None
    with story.platform.client() as client:
        events = [one.kind for one in client.history(num)]
        spent = client.costs.report(by="project").total.usd
    assert (low.restarts, low.attempts) == (1, 2) and spent is not None
    now, most = shown.now, shown.most
    found = {
        # Jobs and their ends.
        "succeeded": (now("executive / Results / Jobs that succeeded"), 1),
        "ended": (now("executive / Results / Ended jobs", state="succeeded"), about(2)),
        "failed": (now("on call / Now / Failed jobs in an hour"), 0),
        "leaders": (now("on call / Now / Control planes", 1), 1),
        # What went wrong.
        "most restarts": (most("on call / Failures / Jobs with the most restarts"), low.restarts),
        "placements": (most("training / Progress / Restarts and placements", 1), low.attempts),
        "restarts": (now("on call / Failures / Restarts by cause", cause="rank_crash"), about(1)),
        "failures": (now("on call / Failures / Failures by cause", cause="rank_crash"), about(1)),
        "preempted": (
            now("on call / Failures / Preemptions by cause", cause="preempted"),
            about(1),
        ),
        "out of memory": (now("on call / Failures / Out of memory"), 0),
        "nodes lost": (now("on call / Capacity / Nodes lost"), 0),
        # Checkpoints.
        "saved": (
            now("on call / Checkpoints / Checkpoints", outcome="committed"),
            about(events.count("checkpoint_committed")),
        ),
        "corrupt": (
            now("on call / Checkpoints / Checkpoints", outcome="quarantined"),
            about(events.count("checkpoint_quarantined")),
        ),
        # Slots and money.
        "slots of the job": (most("training / Progress / Ranks and slots"), 3),
        "slots in use": (most("executive / Use / Slots in use"), pytest.approx(3 / 4)),
        "free slots": (now("control plane / Pools / Free slots"), 4),
        "quota": (most("control plane / Pools / Quotas"), pytest.approx(3 / 4)),
        "spent": (now("executive / Cost / Spent", project="default"), about(float(spent))),
    }
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}
