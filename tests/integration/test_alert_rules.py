"""The table of alerts in the programs of Prometheus: alerts fire, stay silent just below, resolve."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.core.alerts.alertmanager import EXPLAINED, HEARTBEAT, alertmanager_example
from phalanx.core.alerts.conditions import names_read, readings
from phalanx.core.alerts.prometheus import AlertLinks, alert_rule, alert_rules
from phalanx.core.alerts.table import ALERTS, BY_NAME, Alert, FailureMode, Severity
from phalanx.core.metrics.aliases import exported_names
from phalanx.core.metrics.catalogue import CATALOGUE
from support.alert_cases import CASES, AlertCase

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="needs prometheus: apt-get install prometheus"
    ),
]
LINKS = AlertLinks("https://docs/runbooks", "https://grafana", "https://phalanx", "east")
BY_EXPORTED = {one.exported: one for one in CATALOGUE.values()}


def test_every_alert_has_its_cases() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for case in CASES:
        found[case.alert].append(case.says.split()[0])
    for name in BY_NAME:
        wanted = {"fires"} if name == HEARTBEAT else {"fires", "silent", "resolves"}
        assert len(found[name]) >= 3 and set(found[name]) >= wanted, name
    assert set(found) == set(BY_NAME)


def promtool(folder: Path, rules: dict[str, Any], groups: list[dict[str, Any]], every: str) -> str:
    """What `promtool test rules` says; empty: the tests pass."""
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    file = folder / "tests.yml"
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": every, "tests": groups}
    file.write_text(yaml.safe_dump(tests))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def tried(folder: Path, one: Alert, cases: Sequence[AlertCase]) -> str:
    """What is wrong with cases of one alert; empty: nothing."""
    rules = {"groups": [{"name": "one", "rules": [alert_rule(one, AlertLinks())]}]}
    said = ""
    for every in sorted({case.interval_m for case in cases}):
        groups = [expected(one, case) for case in cases if case.interval_m == every]
        said += promtool(folder, rules, groups, f"{every}m")
    return said


def expected(one: Alert, case: AlertCase) -> dict[str, Any]:
    """A case as promtool reads it; later versions of promtool tell its name."""
    query = f'count(ALERTS{{alertname="{one.name}",alertstate="firing"}})'
    return {
        "name": case.says,
        "interval": f"{case.interval_m}m",
        "input_series": [{"series": key, "values": text} for key, text in case.series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for minute, fires in case.firing.items()
        ],
    }


@pytest.mark.parametrize("name", BY_NAME)
def test_an_alert_fires_stays_silent_and_resolves(tmp_path: Path, name: str) -> None:
    cases = [case for case in CASES if case.alert == name]
    assert len(cases) >= 3
    assert tried(tmp_path, BY_NAME[name], cases) == ""


def test_one_case_of_many_that_is_wrong_is_told(tmp_path: Path) -> None:
    first, *others = (case for case in CASES if case.alert == "PhalanxPoolExhausted")
    wrong = replace(others[0], firing={at: not fires for at, fires in others[0].firing.items()})
    said = tried(tmp_path, BY_NAME[first.alert], [first, wrong, *others[1:]])
    assert said.count("got:") == len(wrong.firing)


def test_all_rules_are_taken_by_prometheus(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["alerts", "rules", "--cluster", "east"])
    assert done.exit_code == 0
    file = tmp_path / "rules.yml"
    file.write_text(done.output)
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert (checked.returncode, f"{len(ALERTS)} rules found" in checked.stdout) == (0, True)
    names = [
        rule["alert"] for group in yaml.safe_load(done.output)["groups"] for rule in group["rules"]
    ]
    assert sorted(names) == sorted(BY_NAME)


def test_alerts_read_only_what_is_exported_by_labels_that_it_has() -> None:
    for one in ALERTS:
        assert names_read(one.condition) <= exported_names(), one.name
        for reading in readings(one.condition):
            family = (
                BY_EXPORTED.get(reading.name) or BY_EXPORTED[reading.name.removesuffix("_count")]
            )
            known = {label.name: label.values for label in family.labels}
            assert set(reading.by) <= set(known), one.name
            for label, value in reading.where:
                assert label in known, one.name
                if known[label]:
                    assert set(value.split("|")) <= set(known[label]), (one.name, value)


def test_every_alert_says_what_to_do_with_numbers() -> None:
    for one in ALERTS:
        rule = alert_rule(one, LINKS)
        labels, said = rule["labels"], rule["annotations"]
        assert labels["severity"] == one.severity.value and labels["cluster"] == "east"
        assert labels.get("failure_mode", "") == one.mode.value
        assert said["runbook_url"] == f"https://docs/runbooks/{one.name}.md"
        assert said["dashboard_url"].startswith("https://grafana/d/phalanx-")
        assert said["description"] == one.meaning and said["summary"]
        shown = set(re.findall(r"\{(\w+)", one.summary)) - {"value"}
        has = {label for reading in readings(one.condition) for label in reading.by}
        assert shown <= has, one.name
        assert ("job_url" in said) == ("phalanx_job" in has), one.name
    modes = {one.mode for one in ALERTS}
    assert modes == set(FailureMode)


def test_a_firing_alert_has_its_labels_numbers_and_addresses(tmp_path: Path) -> None:
    case = next(
        one for one in CASES if one.alert == "PhalanxCheckpointOverdue" and one.says == "fires"
    )
    at = max(case.firing)
    said = alert_rule(BY_NAME[case.alert], LINKS)["annotations"]
    group = {
        "interval": "1m",
        "input_series": [{"series": key, "values": text} for key, text in case.series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{at}m",
                "alertname": case.alert,
                "exp_alerts": [
                    {
                        "exp_labels": {
                            "severity": "page",
                            "failure_mode": "F4",
                            "cluster": "east",
                            "project": "vision",
                            "phalanx_job": "j-7",
                        },
                        "exp_annotations": said
                        | {
                            "summary": "j-7 of vision has no new checkpoint for 30m 1s, more than "
                            "3 intervals",
                            "job_url": "https://phalanx/jobs/7",
                        },
                    }
                ],
            }
        ],
    }
    assert promtool(tmp_path, alert_rules(LINKS), [group], "1m") == ""


def test_the_damage_without_a_guard(tmp_path: Path) -> None:
    """Without the least number of events, one failure in a quiet hour is a page."""
    from phalanx.core.alerts.conditions import AllOf, AnyOf, promql

    one = BY_NAME["PhalanxErrorBudgetBurnsFast"]
    assert isinstance(one.condition, AnyOf)
    unguarded = AnyOf(
        tuple(AllOf(part.parts[:2]) for part in one.condition.parts if isinstance(part, AllOf))
    )
    assert promql(unguarded) != promql(one.condition)
    case = next(one for one in CASES if one.says == "silent for one failure in a quiet hour")
    assert "got:" in tried(tmp_path, replace(one, condition=unguarded), [case])


def test_the_example_of_alertmanager_names_alerts_and_receivers_that_exist() -> None:
    done = CliRunner().invoke(app, ["alerts", "alertmanager"])
    found = yaml.safe_load(done.output)
    assert done.exit_code == 0 and found == alertmanager_example()
    receivers = {one["name"] for one in found["receivers"]}
    routes = [found["route"], *found["route"]["routes"]]
    assert {one["receiver"] for one in routes} == receivers
    for cause, others in EXPLAINED:
        assert {cause, *others} <= set(BY_NAME) and cause not in others
        assert HEARTBEAT not in others
    severities = {one.severity for one in ALERTS if one.name != HEARTBEAT}
    assert severities == {Severity.PAGE, Severity.TICKET}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["rules", "--runbooks", "{{ evil }}"], "is not an address"),
        (["rules", "--cluster", "a b"], "is not a name"),
        (["list", "PhalanxNoLeder"], "did you mean PhalanxNoLeader?"),
        (["list", "x"], "phalanx alerts list"),
    ],
)
def test_bad_input_gets_one_message(args: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["alerts", *args])
    assert done.exit_code != 0
    assert said in f"{done.exception} {getattr(done.exception, 'hint', '')}"


RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
SECTIONS = (
    "What it means",
    "What the platform already did",
    "Check",
    "Act",
    "Escalate",
    "It is over when",
)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("Phalanx*.md")} == set(BY_NAME)


@pytest.mark.parametrize("one", ALERTS, ids=lambda one: one.name)
def test_runbooks_have_the_facts_of_the_table_and_all_sections(one: Alert) -> None:
    text = (RUNBOOKS / f"{one.name}.md").read_text()
    _, head, body = text.split("---\n", 2)
    front = yaml.safe_load(head)
    assert front["owner"] in ("platform", "project")
    assert front | {"owner": ""} == {
        "alert": one.name,
        "failure_mode": one.mode.value or "none",
        "severity": one.severity.value,
        "owner": "",
    }
    assert re.findall(r"^## (.+)$", body, re.M) == list(SECTIONS)
    assert re.search(r"^phalanx ", body, re.M) and body.startswith(f"\n# {one.name}\n")
