"""The group `schedules`: jobs that are submitted at the times of a cron expression."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson

_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "NAME": lambda one: one.name,
    "PROJECT": lambda one: one.project,
    "CRON": lambda one: one.cron,
    "TIMEZONE": lambda one: one.timezone,
    "NEXT": lambda one: _when(one),
    "LAST": lambda one: _run_text(one.last_run),
    "OWNER": lambda one: one.owner or one.principal,
}
_RUNS: dict[str, Callable[[Any], Any]] = {
    "DUE": lambda one: output.moment(one.due_at),
    "OUTCOME": lambda one: one.outcome,
    "JOB": lambda one: one.label or "",
    "BY": lambda one: one.by or "schedule",
    "MESSAGE": lambda one: one.message,
}
_ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
_Project = Annotated[str, typer.Option("--project", help="Project of the schedule.")]

schedules_app = typer.Typer(
    name="schedules",
    no_args_is_help=True,
    help="Jobs that are submitted at the times of a cron expression.",
)


def _when(schedule: Any) -> str:
    """The next time of a schedule."""
    if schedule.next_at is None:
        return "paused" if schedule.paused else "never again"
    return output.moment(schedule.next_at)


def _run_text(run: Any) -> str:
    return "" if run is None else f"{output.moment(run.due_at)} {run.label or run.outcome}"


@schedules_app.command("create")
def create(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    name: _ScheduleName,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Job spec in YAML; its project is the schedule's."),
    ],
    cron: Annotated[
        str, typer.Option("--cron", help="Minute hour day month weekday, such as `0 3 * * 1-5`.")
    ],
    timezone: Annotated[
        str, typer.Option("--timezone", help="Time zone of the expression, such as Europe/Berlin.")
    ] = "UTC",
    catch_up: Annotated[
        str,
        typer.Option(
            "--catch-up",
            metavar="none|last|all",
            help="Which times that passed without a control plane start a job.",
        ),
    ] = "last",
    catch_up_limit: Annotated[
        int, typer.Option("--catch-up-limit", min=1, max=100, help="Most jobs of `--catch-up all`.")
    ] = 10,
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap",
            metavar="forbid|allow|replace",
            help="What happens at a time while an earlier job is not over.",
        ),
    ] = "forbid",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the schedule of this name.")
    ] = False,
) -> None:
    """Submit the job of a spec file regularly, with a copy of its folder as it is now."""
    from phalanx.cli.verbs.submit import spec_and_code
    from phalanx.schemas.api.schedules import PutScheduleRequest
    from phalanx.schemas.spec.document import resolved

    session: Session = ctx.obj
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder, connected(ctx) as client:
        spec, code = spec_and_code(session, client, session.invocation.cwd / file, Path(folder))
        fields: dict[str, Any] = {
            "spec": resolved(spec),
            "code": code,
            "cron": cron,
            "timezone": timezone,
            "catch_up": catch_up,
            "catch_up_limit": catch_up_limit,
            "overlap": overlap,
            "paused": paused,
            "replace": replace,
            "owner": session.invocation.owner(),
        }
        _check_choices(catch_up, overlap)
        view = client.schedules.put(name, PutScheduleRequest(**fields), spec.project)
    output.note(f"schedule {name} of project {spec.project}, next: {_when(view)}")


def _check_choices(catch_up: str, overlap: str) -> None:
    """Raise UserError for a word that an option does not know."""
    from phalanx.core.schedules.policy import CatchUp, Overlap
    from phalanx.errors import UserError

    for option, given, known in (
        ("--catch-up", catch_up, CatchUp),
        ("--overlap", overlap, Overlap),
    ):
        words = [one.value for one in known]
        if given not in words:
            raise UserError(f"{option}: {given!r} is unknown", f"write {', '.join(words)}")


@schedules_app.command("ls")
def list_schedules(
    ctx: typer.Context,
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    json: AsJson = False,
) -> None:
    """List schedules with their next times and last runs."""
    with connected(ctx) as client:
        found = client.schedules.list(project)
    output.listing(found, json, _COLUMNS, "no schedules")


@schedules_app.command("show")
def show(
    ctx: typer.Context, name: _ScheduleName, project: _Project = "default", json: AsJson = False
) -> None:
    """Show a schedule, its next times, and what became of the last ones."""
    with connected(ctx) as client:
        view = client.schedules.show(name, project)
    if json:
        output.as_json(view)
        return
    missed = f"{view.catch_up} (at most {view.catch_up_limit})"
    output.facts(
        [
            ("schedule", f"{view.name} of project {view.project}"),
            ("times", f"{view.cron} ({view.timezone})"),
            ("next", "paused" if view.paused else ", ".join(map(output.moment, view.next))),
            ("catch-up", missed if view.catch_up == "all" else view.catch_up),
            ("overlap", view.overlap),
            ("job", None if view.spec is None else view.spec.get("name")),
            ("runs as", view.principal),
            ("changed", f"{output.moment(view.changed_at)} by {view.changed_by}"),
        ]
    )
    output.listing(view.runs, False, _RUNS, "no runs")


@schedules_app.command("pause")
def pause(ctx: typer.Context, name: _ScheduleName, project: _Project = "default") -> None:
    """Let no time count until the schedule is resumed."""
    with connected(ctx) as client:
        client.schedules.pause(name, project)
    output.note(f"paused {name}")


@schedules_app.command("resume")
def resume(ctx: typer.Context, name: _ScheduleName, project: _Project = "default") -> None:
    """Let times from now on count again."""
    with connected(ctx) as client:
        view = client.schedules.resume(name, project)
    output.note(f"resumed {name}, next: {_when(view)}")


@schedules_app.command("rm")
def remove(ctx: typer.Context, name: _ScheduleName, project: _Project = "default") -> None:
    """Remove a schedule with the record of its runs; its jobs go on."""
    with connected(ctx) as client:
        client.schedules.remove(name, project)
    output.note(f"removed {name}")


@schedules_app.command("run")
def run(ctx: typer.Context, name: _ScheduleName, project: _Project = "default") -> None:
    """Submit the job of a schedule now, also of a paused one and beside its other jobs."""
    with connected(ctx) as client:
        print(client.schedules.run(name, project).label)
