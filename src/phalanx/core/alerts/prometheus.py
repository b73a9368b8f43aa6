"""The table of alerts as rules of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.alerts.conditions import promql
from phalanx.core.alerts.table import (
    ALERTS,
    CHECKPOINTS,
    CONTROL_PLANE,
    JOBS,
    LIMITS,
    RESOURCES,
    SUCCESS,
    Alert,
    FailureMode,
)
from phalanx.core.slo.burn import span

GROUPS: Mapping[str, tuple[Alert, ...]] = {
    "phalanx-control-plane": CONTROL_PLANE,
    "phalanx-job-success": SUCCESS,
    "phalanx-checkpoints": CHECKPOINTS,
    "phalanx-jobs": JOBS,
    "phalanx-resources": RESOURCES,
    "phalanx-limits": LIMITS,
}
_FIELD = re.compile(r"\{(\w+)(?::(\w+))?\}")
_FORMS = {"": "humanize", "seconds": "humanizeDuration", "percent": "humanizePercentage"}


@dataclass(frozen=True, slots=True)
class AlertLinks:
    """Addresses that alerts lead to, without a slash at the end; empty: the annotation is left out.

    `runbooks` is the folder of the runbooks, `dashboards` an address of Grafana, `control_plane` that of
    Phalanx. `cluster` is a label of every alert.
    """

    runbooks: str = "docs/runbooks"
    dashboards: str = ""
    control_plane: str = ""
    cluster: str = ""


def alert_rules(links: AlertLinks, alerts: Sequence[Alert] = ALERTS) -> dict[str, Any]:
    """The rules as Prometheus reads them from a file. They need Prometheus 2.42 or newer."""
    groups = []
    for name, group in GROUPS.items():
        rules = [alert_rule(one, links) for one in group if one in alerts]
        if rules:
            groups.append({"name": name, "rules": rules})
    return {"groups": groups}


def alert_rule(one: Alert, links: AlertLinks) -> dict[str, Any]:
    """One rule."""
    rule: dict[str, Any] = {"alert": one.name, "expr": promql(one.condition)}
    if one.hold_s:
        rule["for"] = span(one.hold_s)
    if one.keep_s:
        rule["keep_firing_for"] = span(one.keep_s)
    return rule | {"labels": labels_of(one, links), "annotations": _annotations(one, links)}


def labels_of(one: Alert, links: AlertLinks) -> dict[str, str]:
    """The labels that an alert has beside those of its condition."""
    found = {"severity": one.severity.value}
    if one.mode is not FailureMode.NONE:
        found["failure_mode"] = one.mode.value
    return found | ({"cluster": links.cluster} if links.cluster else {})


def runbook_url(one: Alert, links: AlertLinks) -> str:
    """The address of its runbook."""
    return f"{links.runbooks}/{one.name}.md" if links.runbooks else ""


def dashboard_url(one: Alert, links: AlertLinks) -> str:
    """The address of the dashboard to open first."""
    return f"{links.dashboards}/d/phalanx-{one.screen.value}" if links.dashboards else ""


def _annotations(one: Alert, links: AlertLinks) -> dict[str, str]:
    found = {
        "summary": _template(one.summary),
        "description": one.meaning,
        "runbook_url": runbook_url(one, links),
        "dashboard_url": dashboard_url(one, links),
    }
    if links.control_plane and "{phalanx_job}" in one.summary:
        number = '{{ reReplaceAll "^j-" "" $labels.phalanx_job }}'
        found["job_url"] = f"{links.control_plane}/jobs/{number}"
    return {name: text for name, text in found.items() if text}


def _template(summary: str) -> str:
    """The summary as a template of Prometheus."""

    def put(field: re.Match[str]) -> str:
        name, form = field[1], field[2] or ""
        if name == "value":
            return f"{{{{ $value | {_FORMS[form]} }}}}"
        return f"{{{{ $labels.{name} }}}}"

    return _FIELD.sub(put, summary)
