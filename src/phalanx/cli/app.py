"""The command line as one Typer application.

Verbs import their dependencies when they run, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx import __version__
from phalanx.cli.client.invocation import Invocation
from phalanx.cli.client.session import Session
from phalanx.cli.verbs import (
    checkpoints,
    diagnose,
    jobs,
    logs,
    metrics,
    platform,
    programs,
    submit,
    why,
)
from phalanx.cli.verbs.bench import bench_app
from phalanx.cli.verbs.changes import clone, settings
from phalanx.cli.verbs.cost.bills import cost_app
from phalanx.cli.verbs.cost.budgets import budgets_app
from phalanx.cli.verbs.cost.estimate import estimate
from phalanx.cli.verbs.cost.prices import prices_app
from phalanx.cli.verbs.enter.exec import exec_
from phalanx.cli.verbs.enter.port_forward import port_forward
from phalanx.cli.verbs.monitoring.alerts import alerts_app
from phalanx.cli.verbs.monitoring.dashboards import dashboards_app
from phalanx.cli.verbs.monitoring.job_bundle import bundle
from phalanx.cli.verbs.monitoring.probes import probes
from phalanx.cli.verbs.monitoring.slo import slo_app
from phalanx.cli.verbs.monitoring.traces import trace
from phalanx.cli.verbs.nodes import nodes_app
from phalanx.cli.verbs.pools import pools_app, projects_app, quotas, scheduler_app
from phalanx.cli.verbs.recipe import recipe_app
from phalanx.cli.verbs.retention import jobs as retention
from phalanx.cli.verbs.retention import periods as _periods  # noqa: F401 (adds verbs to two groups)
from phalanx.cli.verbs.secrets import secrets_app
from phalanx.cli.verbs.studies.sweep import sweep_app
from phalanx.cli.verbs.tenancy.accounts import grants_app, groups_app, users_app, whoami
from phalanx.cli.verbs.tenancy.audit import audit
from phalanx.cli.verbs.tenancy.login import login, logout
from phalanx.cli.verbs.tokens import token_app
from phalanx.cli.verbs.tracking.runs import runs
from phalanx.cli.verbs.workflow.schedules import schedules_app
from phalanx.cli.verbs.workflow.templates import templates_app

_TRAIN, _LOOK, _STEER, _PLATFORM = "Train", "Look", "Steer", "Platform"

app = typer.Typer(
    name="phalanx",
    help="Run distributed training jobs, with recovery from failures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        print(f"phalanx {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home", envvar="PHALANX_HOME", help="The home directory; default: ~/.phalanx."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", envvar="PHALANX_URL", help="Address of a control plane on another machine."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="PHALANX_TOKEN", help="Bearer token of that control plane."),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            envvar="PHALANX_CA_FILE",
            help="PEM file of the only authority that is accepted for that control plane; default: those "
            "of the system.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run distributed training jobs, with recovery from failures."""
    invocation = Invocation.of_this_process()
    root = Path(invocation.env.get("HOME", "/"), ".phalanx") if home is None else home.expanduser()
    ctx.obj = Session(invocation, invocation.cwd / root, url, token, ca_file)


for _verb, _panel in (
    (submit.run, _TRAIN),
    (submit.submit, _TRAIN),
    (estimate, _TRAIN),
    (clone.clone, _TRAIN),
    (jobs.ps, _LOOK),
    (jobs.show, _LOOK),
    (why.why, _LOOK),
    (logs.logs, _LOOK),
    (logs.events, _LOOK),
    (metrics.metrics, _LOOK),
    (metrics.compare, _LOOK),
    (runs, _LOOK),
    (metrics.prometheus_rules, _LOOK),
    (metrics.report, _TRAIN),
    (diagnose.stacks, _LOOK),
    (diagnose.profile, _LOOK),
    (trace, _LOOK),
    (bundle, _LOOK),
    (checkpoints.checkpoints, _LOOK),
    (port_forward, _LOOK),
    (jobs.wait, _STEER),
    (jobs.stop, _STEER),
    (jobs.pause, _STEER),
    (jobs.resume, _STEER),
    (settings.update, _STEER),
    (retention.archive, _STEER),
    (retention.unarchive, _STEER),
    (retention.pin, _STEER),
    (retention.unpin, _STEER),
    (retention.delete, _STEER),
    (login, _PLATFORM),
    (logout, _PLATFORM),
    (whoami, _PLATFORM),
    (audit, _PLATFORM),
    (quotas, _PLATFORM),
    (platform.up, _PLATFORM),
    (platform.doctor, _PLATFORM),
):
    app.command(rich_help_panel=_panel)(_verb)
app.command("exec", rich_help_panel=_LOOK)(exec_)
app.command("checkpoint", hidden=True)(checkpoints.checkpoints)
for _program, _panel in (
    (programs.plan, _TRAIN),
    (programs.data, _TRAIN),
    (programs.simulate, _PLATFORM),
    (programs.operator, _PLATFORM),
):
    app.command(rich_help_panel=_panel, context_settings=programs.PASS_ARGUMENTS)(_program)
app.command("probes", rich_help_panel=_PLATFORM)(probes)
app.add_typer(cost_app, rich_help_panel=_LOOK)
app.add_typer(sweep_app, rich_help_panel=_TRAIN)
app.add_typer(recipe_app, rich_help_panel=_TRAIN)
app.add_typer(schedules_app, rich_help_panel=_TRAIN)
app.add_typer(templates_app, rich_help_panel=_TRAIN)
app.add_typer(bench_app, rich_help_panel=_PLATFORM)
for _group in (
    *(budgets_app, prices_app, pools_app, nodes_app, projects_app, scheduler_app, token_app),
    *(users_app, groups_app, grants_app, secrets_app, alerts_app, slo_app),
    *(dashboards_app, platform.admin_app, submit.spec_app),
):
    app.add_typer(_group, rich_help_panel=_PLATFORM)
