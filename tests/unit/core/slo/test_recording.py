"""Recording rules and OpenSLO documents: names of the catalogue, every indicator, free names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core.metrics.aliases import exported_names
from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.core.slo.indicators import INDICATORS
from phalanx.core.slo.objectives import Indicator
from phalanx.core.slo.recording import ExportedObjective, openslo, slo_rule_file
from support.promql import names_in

_RFC1123 = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TIMES = ("start_p95", "recovery_p95")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    return [one for group in slo_rule_file()["groups"] for one in group["rules"]]


def queries() -> list[str]:
    found = openslo([ExportedObjective("a", "success", 0.99)], 30)[-1]
    measured = found["spec"]["indicator"]["spec"]["ratioMetric"]
    exported = [measured[one]["metricSource"]["spec"]["query"] for one in ("bad", "total")]
    for limited in openslo([ExportedObjective("a", one, 0.95, 60.0) for one in _TIMES], 30)[2:]:
        measured = limited["spec"]["indicator"]["spec"]["ratioMetric"]
        exported += [measured[one]["metricSource"]["spec"]["query"] for one in ("good", "total")]
    return [one["expr"] for one in rules()] + exported


def test_there_is_every_indicator_once() -> None:
    assert [one.code for one in INDICATORS] == [f"M{number}" for number in range(1, 16)]
    names = [one["record"] for one in rules()]
    assert len(set(names)) == len(names)
    assert {one["labels"]["indicator"] for one in rules() if "labels" in one} == {
        one.code for one in INDICATORS
    }


def test_queries_read_only_names_and_labels_that_are_exported() -> None:
    labels = {"le", *(one for family in CATALOGUE.values() for one in family.label_names)}
    for query in queries():
        found = names_in(query)
        assert found.selected and set(found.selected) <= exported_names(), query
        assert found.listed - {"instance", "pod"} <= labels, query
        for name, given in found.selected.items():
            (family,) = [
                one
                for one in CATALOGUE.values()
                if name in {one.exported + part for part in ("", "_bucket", "_count", "_sum")}
            ]
            assert given <= {*family.label_names, "le"}, query


def test_documents_have_names_of_their_own() -> None:
    classes = ["Big_Jobs", "big.jobs", "x" * 63, "x" * 62 + "y"]
    given = [ExportedObjective(one, "success", 0.99) for one in classes]
    given.append(ExportedObjective("big.jobs", "start_p95", 0.95))
    service, source, *slos = openslo(given, 28)
    assert (service["kind"], source["kind"], len(slos)) == ("Service", "DataSource", len(classes))
    names = [one["metadata"]["name"] for one in slos]
    assert len(set(names)) == len(names) and all(map(_RFC1123.fullmatch, names))
    for one, given_one in zip(slos, given, strict=False):
        assert one["apiVersion"] == "openslo/v1" and one["spec"]["service"] == "phalanx"
        assert one["spec"]["objectives"][0]["target"] == given_one.target
        assert one["spec"]["timeWindow"] == [{"duration": "28d", "isRolling": True}]
        measured = one["spec"]["indicator"]["spec"]["ratioMetric"]
        query = measured["bad"]["metricSource"]["spec"]["query"]
        assert f'class="{given_one.job_class}"' in query and 'fault="platform"' in query


def test_limits_of_durations_are_bounds_of_histograms() -> None:
    found = openslo([ExportedObjective("a", one.value, 0.9, 400.0) for one in Indicator], 30)[2:]
    assert [one["metadata"]["name"] for one in found] == [
        *("a-success", "a-goodput", "a-start-p95", "a-recovery-p95")
    ]
    for one in found[2:]:
        measured = one["spec"]["indicator"]["spec"]["ratioMetric"]
        good = measured["good"]["metricSource"]["spec"]["query"]
        total = measured["total"]["metricSource"]["spec"]["query"]
        assert '_bucket{class="a",le="300.0"}' in good and '_count{class="a"}' in total
        assert "up to 300 s are good" in one["spec"]["description"]
    assert len(openslo([ExportedObjective("a", "recovery_p95", 0.95, 0.1)], 30)) == 2


@needs_promtool
def test_prometheus_takes_the_rules_and_adds_up_before_it_divides(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(slo_rule_file()))
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    name = "phalanx_class_jobs_ended_total"
    # One bad job of 20 in the first half hour, none of 10 in the second: 1 of 30, not a mean of 1/40.
    series = {
        f'{name}{{class="a",fault="platform",instance="{pod}"}}': "0 1x59"
        for pod in ("one:7000", "two:7000")
    } | {
        f'{name}{{class="a",fault="none",instance="{pod}"}}': "0 19x29 29x29"
        for pod in ("one:7000", "two:7000")
    }
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'round(300 * phalanx:class_success:bad_ratio_1h{class="a"})',
                        "eval_time": "59m",
                        "exp_samples": [{"labels": '{class="a"}', "value": 10}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    words = ["promtool", "test", "rules", tmp_path / "tests.yml"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
