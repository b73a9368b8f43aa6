"""The dashboards ask for what is exported, in queries that Prometheus takes; the export has all files."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.core.metrics.aliases import exported_names, rule_file
from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.errors import UserError
from phalanx.monitoring.bundle import WatchedPlatform, bundle, dashboard_texts
from support.promql import names_in, without_variables

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from dashboards.shipped import ShippedPanel, boards, panels  # noqa: E402

pytestmark = pytest.mark.integration

PANELS = list(panels())
#: Of NVIDIA's own exporter: its series, and those of its labels that panels show.
FOREIGN = re.compile(r"DCGM_FI_[A-Z_]+")
#: Labels that no family has: of Prometheus, and of the buckets of histograms.
ANYWHERE = {"instance", "pod", "le"}

#: What users ask such dashboards for, and words of the panels that answer.
WANTED = {
    "Phalanx: executive": {
        "success rate": "Jobs that succeeded",
        "its trend": "Success over a day",
        "spend": "Spent",
        "cost per project": "Spent in a day",
        "time to complete": "Time to complete",
        "convergence": "Jobs whose loss falls",
    },
    "Phalanx: on call": {
        "failing jobs": "Jobs with the most restarts",
        "recent errors": "Failures by cause",
        "restarts": "Restarts by cause",
        "node failures": "Nodes lost",
        "checkpoint failures": "Checkpoints that failed",
        "last good checkpoint": "Steps at risk",
        "utilisation": "Slots in use by pool",
        "network saturation": "Gradients on the network",
    },
    "Phalanx: debug": {
        "step latency histogram": "Step times",
        "step latency by worker": "Step time by rank, p95",
        "collective durations": "Exchange of gradients",
        "data throughput by worker": "Samples per second by rank",
        "sample counts by worker": "Samples in an hour by rank",
        "memory": "Memory of ranks",
        "OOM events": "Out of memory by day",
    },
    "Phalanx: training": {
        "loss": "Loss",
        "accuracy": "Accuracy",
        "utilisation": "Device utilisation",
        "throughput": "Samples per second",
        "communication time": "Share of communication",
        "memory": "Host memory",
        "cost projection": "Projected cost of a day",
    },
    "Phalanx: devices": {
        "utilisation": "Utilisation",
        "memory": "Memory",
        "temperature": "Temperature",
        "power": "Power",
        "SM": "Activity of multiprocessors",
        "PCIe": "PCIe",
    },
}


def unknown(query: str) -> set[str]:
    """Names of metrics and labels of a query that nothing exports."""
    names = names_in(without_variables(query))
    families = {one.exported: one for one in CATALOGUE.values()}
    labels, found = set(ANYWHERE), set[str]()
    for name, used in names.selected.items():
        if FOREIGN.fullmatch(name):
            continue
        one = families.get(re.sub(r"_(bucket|count|sum)$", "", name)) or families.get(name)
        if one is None or name not in exported_names():
            found.add(name)
            continue
        labels |= {*one.label_names}
        found |= used - {*one.label_names}
    return found | (names.listed - labels)


def test_every_name_of_a_panel_is_in_the_catalogue() -> None:
    found = {one.name: unknown(query) for one in PANELS for query in one.queries}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_a_renamed_metric_or_label_is_found() -> None:
    texts = {query for one in PANELS for query in one.queries}
    metrics = {name for query in texts for name in names_in(without_variables(query)).selected}
    assert len(metrics) > 80
    for name in sorted(metrics):
        if not FOREIGN.fullmatch(name):
            hit = next(one for one in texts if re.search(rf"\b{name}\b", one))
            assert unknown(re.sub(rf"\b{name}\b", f"{name}_of_old", hit)), name
    assert unknown('phalanx_jobs{stat="queued"}') == {"stat"}
    assert unknown("sum by (reason) (phalanx_restarts_total)") == {"reason"}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)
def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{at}", "expr": without_variables(query)}
        for at, query in enumerate(query for one in PANELS for query in one.queries)
    ]
    file = tmp_path / "panels.yml"

    def checked(rules: list[dict[str, str]]) -> subprocess.CompletedProcess[str]:
        file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        return subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)

    done = checked(rules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
    assert checked([*rules, {"record": "panel:bad", "expr": "sum by (rate(x[5m])"}]).returncode != 0


def test_there_are_six_dashboards_that_answer_what_is_asked() -> None:
    titles: dict[str, list[str]] = {}
    for one in PANELS:
        titles.setdefault(one.board, []).append(one.title)
    assert list(titles) == [*WANTED, "Phalanx: control plane"]
    assert len(PANELS) >= 70
    for board, wanted in WANTED.items():
        assert sorted(set(wanted.values()) - set(titles[board])) == [], board
        assert len(set(titles[board])) == len(titles[board]), board


def test_every_panel_has_a_unit_advice_a_link_and_a_place() -> None:
    for board in boards():
        taken: set[tuple[int, int]] = set()
        for one in board["panels"]:
            place = one["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken and place["x"] + place["w"] <= 24, one["title"]
            taken |= cells
            if one["type"] == "row":
                continue
            (link,) = one["fieldConfig"]["defaults"]["links"]
            assert link["url"].startswith("${url}/"), one["title"]
            for target in one["targets"]:
                assert target["datasource"]["uid"] == "${datasource}"
    for panel in PANELS:
        assert panel.unit and re.search(r"\w{3,}.*\.$", panel.text), panel.name
        assert len(panel.text) > 50, panel.name


def test_advice_names_verbs_that_exist() -> None:
    root = typer.main.get_command(app)
    said = [(one, words) for one in PANELS for words in re.findall(r"`phalanx ([^`]+)`", one.text)]
    assert len(said) > 30
    for panel, words in said:
        command, rest = root, words.split()
        while rest and getattr(command, "commands", None) and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        assert command is not root, (panel.name, words)
        known = {option for one in command.params for option in one.opts}
        assert {word for word in rest if word.startswith("--")} <= known, (panel.name, words)


def variables(board: dict[str, Any]) -> set[str]:
    return {one["name"] for one in board["templating"]["list"]}


def test_every_variable_of_a_query_is_at_the_top_of_its_dashboard() -> None:
    for board in boards():
        used = set(
            re.findall(r"\$(\w+)", json.dumps([one.get("targets") for one in board["panels"]]))
        )
        used -= {"__rate_interval", "__range"}
        assert used <= variables(board), board["title"]
        assert {"datasource", "url"} <= variables(board)
        for one in board["templating"]["list"]:
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"])
            if one["type"] == "query":
                assert asked is not None
                assert unknown(f"sum by ({asked[2]}) ({asked[1]})") == set(), one


def test_the_files_are_what_the_tables_give() -> None:
    if importlib.util.find_spec("grafana_foundation_sdk") is None:
        pytest.skip("needs grafana-foundation-sdk, of the extra dev")
    script = ROOT / "scripts" / "generate_dashboards.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the export --------------------------------------------------------------------------------------


def test_the_verb_writes_every_file_and_replaces_none_unasked(tmp_path: Path) -> None:
    folder, authority = tmp_path / "out", tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    words = ["--url", "https://train.example.org:8443", "--ca-file", str(authority)]
    words += ["dashboards", "export", str(folder), "--namespace", "ml"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    written = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
    assert {line.removeprefix(f"{folder}/") for line in done.output.split()} == written
    rules = {"rules/phalanx-aliases.yml", "rules/phalanx-alerts.yml", "alertmanager.example.yml"}
    assert {"compose.yaml", "prometheus.yml", "ca.pem"} | rules < written
    assert "https://train.example.org:8443" in (folder / "rules/phalanx-alerts.yml").read_text()
    assert sum(one.startswith("dashboards/") for one in written) == 6
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert (job["scheme"], job["static_configs"]) == (
        "https",
        [{"targets": ["train.example.org:8443"]}],
    )
    assert CliRunner().invoke(app, words).exit_code == 0  # the same once more
    (folder / "compose.yaml").write_text("mine")
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, UserError) and "compose.yaml" in str(refused.exception)
    assert (folder / "compose.yaml").read_text() == "mine"
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    assert (folder / "compose.yaml").read_text() != "mine"


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)
def test_prometheus_takes_the_configuration(tmp_path: Path) -> None:
    for name, text in bundle(WatchedPlatform()).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("/etc/phalanx", str(tmp_path)))
    (tmp_path / "token").write_text("x")
    for words in (
        ["config", tmp_path / "prometheus.yml"],
        ["rules", tmp_path / "rules/phalanx-aliases.yml"],
        ["rules", tmp_path / "rules/phalanx-alerts.yml"],
        ["rules", tmp_path / "rules/phalanx-slo.yml"],
    ):
        done = subprocess.run(["promtool", "check", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_mounts_what_is_written_and_listens_on_the_loopback_interface() -> None:
    files = bundle(WatchedPlatform(ca="x"))
    document = yaml.safe_load(files["compose.yaml"])
    secrets = {one["file"] for one in document["secrets"].values()}
    for name, service in document["services"].items():
        assert "ports" not in service, name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./"):
                path = source.removeprefix("./")
                assert any(one == path or one.startswith(f"{path}/") for one in files), source
            else:
                assert source in document["volumes"], source
    assert secrets == {"token", "grafana-password"}
    assert not secrets & set(files)  # never written: they are secrets
    prometheus, grafana = document["services"]["prometheus"], document["services"]["grafana"]
    assert "--web.listen-address=127.0.0.1:9090" in prometheus["command"]
    assert grafana["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert "ca.pem" not in str(yaml.safe_load(bundle(WatchedPlatform())["compose.yaml"]))


def test_objects_of_kubernetes_find_the_service_and_carry_rules_and_dashboards() -> None:
    files = bundle(WatchedPlatform(namespace="phalanx-system"))
    monitor = yaml.safe_load(files["kubernetes/service-monitor.yaml"])
    base = (ROOT / "deploy/kubernetes/base/control-plane.yaml").read_text()
    (service,) = (one for one in yaml.safe_load_all(base) if one["kind"] == "Service")
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {one["name"] for one in service["spec"]["ports"]}
    rule, alerts, slo = yaml.safe_load(files["kubernetes/prometheus-rules.yaml"])["items"]
    assert rule["spec"] == rule_file()
    assert alerts["spec"] == yaml.safe_load(files["rules/phalanx-alerts.yml"])
    assert slo["spec"] == yaml.safe_load(files["rules/phalanx-slo.yml"])
    maps = yaml.safe_load(files["kubernetes/dashboards.yaml"])["items"]
    texts = {name: text for one in maps for name, text in one["data"].items()}
    assert {name: json.loads(text)["uid"] for name, text in texts.items()} == {
        name: name.removesuffix(".json") for name in dashboard_texts()
    }
    assert all(len(text) < 900_000 for text in texts.values())  # a ConfigMap holds 1 MiB


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "localhost:7000"}, "not the address"),
        ({"url": "file:///etc"}, "not the address"),
        ({"namespace": "A b"}, "not the name of a namespace"),
    ],
)
def test_bad_input_gets_one_message(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        WatchedPlatform(**given)


def test_links_of_the_files_lead_to_the_control_plane() -> None:
    files = bundle(WatchedPlatform("https://[::1]:7000/"))
    board = json.loads(files["dashboards/phalanx-training.json"])
    (url,) = (one for one in board["templating"]["list"] if one["name"] == "url")
    assert url["query"] == "https://[::1]:7000"
    assert WatchedPlatform("https://[::1]:7000/").target == "[::1]:7000"
    assert WatchedPlatform("https://a.example").target == "a.example:443"


def test_a_panel_is_found_by_its_name() -> None:
    assert len({one.name for one in PANELS}) == len(PANELS)
    assert isinstance(PANELS[0], ShippedPanel)
