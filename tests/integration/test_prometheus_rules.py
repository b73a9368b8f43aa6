"""The recording rules, in the programs of Prometheus: known names, devices once, replicas."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.core.metrics.aliases import ALIASES, exported_names, one_of, rule_file
from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.launch.ports import free_port
from phalanx.server.observe.exposition import Exposition
from support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("promtool") is None or shutil.which("prometheus") is None,
        reason="needs prometheus: apt-get install prometheus",
    ),
]

#: Names of metrics that users of such platforms have in their dashboards already.
WANTED = """
training_loss training_accuracy training_throughput_samples_per_sec training_steps_per_sec
gradient_sync_time_seconds data_loading_time_seconds computation_time_seconds communication_time_seconds
gpu_utilization_percent gpu_memory_used_mb DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_FB_USED DCGM_FI_DEV_GPU_TEMP
DCGM_FI_DEV_POWER_USAGE ray_workers_active ray_gpus_utilized ray_memory_used_gb
"""


def test_every_name_of_other_platforms_is_exported_or_recorded() -> None:
    here = {one.exported for one in CATALOGUE.values()} | {one.name for one in ALIASES}
    assert [name for name in WANTED.split() if name not in here] == []


def test_rules_read_only_what_is_exported() -> None:
    for one in ALIASES:
        read = set(re.findall(r"\b(?:phalanx|training|step|gpu|process)_[a-z0-9_]+", one.query))
        read -= {"phalanx_job"}
        assert read and sorted(read - exported_names()) == [], one.name


def test_the_verb_prints_rules_that_prometheus_takes(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["prometheus-rules"])
    assert done.exit_code == 0 and yaml.safe_load(done.output) == rule_file()
    file = tmp_path / "aliases.yml"
    file.write_text(done.output)
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert (checked.returncode, f"{len(ALIASES)} rules found" in checked.stdout) == (0, True)


def promtool(
    folder: Path,
    series: dict[str, str],
    cases: dict[str, list[tuple[str, float]]],
    at: str = "10m",
) -> str:
    """What `promtool test rules` says about these inputs, each query at this time."""
    (folder / "rules.yml").write_text(yaml.safe_dump(rule_file()))
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": key, "values": one} for key, one in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": at,
                        "exp_samples": [{"labels": labels, "value": one} for labels, one in found],
                    }
                    for query, found in cases.items()
                ],
            }
        ],
    }
    file = folder / "tests.yml"
    file.write_text(yaml.safe_dump(tests))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


#: Two replicas with the totals of one database; the second one ends after five minutes.
TOTALS = {
    'phalanx_restarts_total{cause="oom",instance="a"}': "3 3 3 4 4 4 4 4 4 4 4",
    'phalanx_restarts_total{cause="oom",instance="b"}': "3 3 3 4 4 4 stale",
}
#: The same, where each replica counts for itself from its start on, and a third one replaces the second.
COUNTED_APART = {
    'phalanx_restarts_total{cause="oom",instance="a"}': "0 0 0 1 1 1 1 1 1 1 1",
    'phalanx_restarts_total{cause="oom",instance="b"}': "3 3 3 4 4 4 stale",
}
_NOW = {'job_requeues_total{cause="oom"}': [('job_requeues_total{cause="oom"}', 4.0)]}


def test_the_end_of_a_replica_neither_resets_nor_doubles_a_total(tmp_path: Path) -> None:
    for at in ("4m", "10m"):  # with both replicas, and with one
        assert promtool(tmp_path, TOTALS, _NOW, at) == ""
    increase = "sum(max without (instance, pod) (increase(phalanx_restarts_total[10m])))"
    assert promtool(tmp_path, TOTALS, {f"round({increase})": [("{}", 1.0)]}) == ""
    # The damage: a plain sum over replicas, and counters that each replica keeps for itself.
    assert "exp:" in promtool(
        tmp_path, TOTALS, {"sum(phalanx_restarts_total offset 6m)": [("{}", 4.0)]}
    )
    assert "exp:" in promtool(tmp_path, COUNTED_APART, _NOW)


def test_a_first_failure_has_an_increase_only_behind_a_zero(tmp_path: Path) -> None:
    query = "ceil(sum(increase(phalanx_oom_kills_total[10m])))"
    born = {'phalanx_oom_kills_total{instance="a"}': "_ _ _ _ 1 1 1 1 1 1 1"}
    zeros = {'phalanx_oom_kills_total{instance="a"}': "0 0 0 0 1 1 1 1 1 1 1"}
    assert promtool(tmp_path, zeros, {query: [("{}", 1.0)]}) == ""
    assert promtool(tmp_path, born, {query: [("{}", 0.0)]}) == ""  # what an alert would see


def test_a_device_is_counted_once_beside_the_exporter_of_nvidia(tmp_path: Path) -> None:
    ours = {'phalanx_gpu_power_watts{rank="0",instance="a"}': "300x10"}
    query = "sum(DCGM_FI_DEV_POWER_USAGE)"
    assert promtool(tmp_path, ours, {query: [("{}", 300.0)]}) == ""
    both = ours | {'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-1",instance="n1"}': "300x10"}
    assert promtool(tmp_path, both, {query: [("{}", 300.0)]}) == ""


# -- a real Prometheus ---------------------------------------------------------------------------


@contextmanager
def serving(text: bytes) -> Iterator[int]:
    """A target that answers every scrape with this text."""

    class Target(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def scraping(folder: Path, target: int) -> Iterator[str]:
    """A Prometheus with a scrape as its documentation begins with: no option but the target."""
    port = free_port()
    scrape = {"job_name": "phalanx", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = {
        "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [scrape],
    }
    (folder / "rules.yml").write_text(yaml.safe_dump(rule_file()))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    args = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    args += [f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *args], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def asked(url: str, query: str) -> list[dict[str, str]]:
    """The label sets that a query finds; none while Prometheus does not answer."""
    encoded = urllib.parse.quote(query)
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?query={encoded}", timeout=5) as answer:
            return [one["metric"] for one in json.load(answer)["data"]["result"]]
    except OSError:
        return []


def test_a_default_scrape_finds_jobs_by_their_own_label(rig: Rig, tmp_path: Path) -> None:
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 1})
    rig.turn(1.0)
    rig.turn(1.0)
    text = Exposition(rig.context).scrape(rig.clock.now())
    with serving(text) as target, scraping(tmp_path, target) as url:
        query = f'phalanx_job_attempts_total{{phalanx_job="j-{num}"}}'
        (found,) = wait_until(lambda: asked(url, query), guard_s=60)
        # Prometheus' own label has the name of the scrape, and renames ours.
        assert (found["job"], found["exported_job"]) == ("phalanx", f"j-{num}")
        assert asked(url, f'phalanx_job_attempts_total{{job="j-{num}"}}') == []
        assert wait_until(lambda: asked(url, "ray_workers_active"), guard_s=60) == [
            {"__name__": "ray_workers_active"}
        ]


def test_one_replica_is_what_the_helper_of_rules_takes() -> None:
    assert one_of("a") == "max without (instance, pod) (a)"
