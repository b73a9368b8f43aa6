"""`phalanx alerts`: the table of alerts, and what Prometheus and Alertmanager need of it."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.monitoring import alerts_live
from phalanx.core.alerts.table import ALERTS, Alert
from phalanx.core.notify.samples import needs_prometheus
from phalanx.errors import UserError
from phalanx.kit.text import nearest
from phalanx.kit.units import format_duration

# Rules are templates: braces would be code, and Prometheus would refuse the file or run it.
_ADDRESS = re.compile(r"[^\s{}\"\\]{0,2000}")
_CLUSTER = re.compile(r"[A-Za-z0-9._-]{0,63}")

alerts_app = typer.Typer(
    name="alerts",
    help="Alerts of the platform: the table, rules of Prometheus, and the built-in notifier.",
    no_args_is_help=True,
)
for _verb in (
    alerts_live.firing,
    alerts_live.silence,
    alerts_live.silences,
    alerts_live.unsilence,
    alerts_live.receivers,
    alerts_live.deliveries,
):
    alerts_app.command(_verb.__name__)(_verb)


@alerts_app.command("list")
def list_alerts(
    name: Annotated[
        str | None, typer.Argument(metavar="[ALERT]", help="Only this one, with all that it has.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the alerts: severity, failure mode, and how long the condition must hold."""
    found = [one for one in ALERTS if name in (None, one.name)]
    if not found:
        near = nearest(str(name), [one.name for one in ALERTS])
        raise UserError(
            f"there is no alert {name}",
            f"did you mean {near}?" if near else "`phalanx alerts list` shows all of them",
        )
    if json:
        output.as_json([_view(one) for one in found])
    elif name is not None:
        for key, value in _view(found[0]).items():
            typer.echo(f"{key + ':':14}{value}")
    else:
        rows = [
            (
                one.name,
                one.severity.value,
                one.mode.value,
                _held(one),
                _evaluated_by(one),
                one.meaning,
            )
            for one in found
        ]
        heads = ("ALERT", "SEVERITY", "MODE", "FOR", "EVALUATED BY", "MEANING")
        output.table(heads, rows, "no alerts")


def _held(one: Alert) -> str:
    return format_duration(one.hold_s) if one.hold_s else "at once"


def _evaluated_by(one: Alert) -> str:
    """What can evaluate it: a few alerts are about the scrape, or about the leader itself."""
    return "Prometheus" if needs_prometheus(one) else "both"


def _view(one: Alert) -> dict[str, Any]:
    from phalanx.core.alerts.conditions import promql

    return {
        "alert": one.name,
        "severity": one.severity.value,
        "failure_mode": one.mode.value,
        "for": _held(one),
        "evaluated_by": _evaluated_by(one),
        "summary": one.summary,
        "meaning": one.meaning,
        "dashboard": one.screen.value,
        "query": promql(one.condition),
    }


@alerts_app.command("rules")
def rules(
    runbooks: Annotated[
        str, typer.Option("--runbooks", help="Address of the folder of the runbooks.")
    ] = "docs/runbooks",
    dashboards: Annotated[str, typer.Option("--dashboards", help="Address of Grafana.")] = "",
    control_plane: Annotated[
        str, typer.Option("--control-plane", help="Address of Phalanx, for links to jobs.")
    ] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Value of the label `cluster` of every alert.")
    ] = "",
) -> None:
    """Print alerting rules for Prometheus 2.42 or newer."""
    from phalanx.core.alerts.prometheus import AlertLinks, alert_rules

    given = {
        "--runbooks": runbooks,
        "--dashboards": dashboards,
        "--control-plane": control_plane,
    }
    for option, address in given.items():
        if not _ADDRESS.fullmatch(address):
            raise UserError(
                f"{option} {address!r} is not an address", "write one such as https://host/path"
            )
    if not _CLUSTER.fullmatch(cluster):
        raise UserError(
            f"--cluster {cluster!r} is not a name", "use at most 63 letters, digits and any of ._-"
        )
    links = AlertLinks(
        runbooks=runbooks.rstrip("/"),
        dashboards=dashboards.rstrip("/"),
        control_plane=control_plane.rstrip("/"),
        cluster=cluster,
    )
    _print(alert_rules(links))


@alerts_app.command("alertmanager")
def alertmanager() -> None:
    """Print an example of a configuration of Alertmanager: routes, groups, and what explains what."""
    from phalanx.core.alerts.alertmanager import alertmanager_example

    _print(alertmanager_example())


def _print(document: dict[str, Any]) -> None:
    import yaml

    typer.echo(
        yaml.safe_dump(document, sort_keys=False, width=10_000, allow_unicode=True), nl=False
    )
