"""The verbs about retention periods: projects set --retain, and admin retention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.platform import admin_app
from phalanx.cli.verbs.pools import ProjectName, projects_app
from phalanx.errors import UserError
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import StoredLogsView

_KINDS = ("logs", "failed_logs", "metrics", "checkpoints", "code", "jobs")
_DEFAULT = "default"


@projects_app.command("set")
def set_project(
    ctx: typer.Context,
    project: ProjectName,
    retain: Annotated[
        str,
        typer.Option(
            "--retain",
            metavar="KIND=PERIOD,...",
            help="Retention periods: logs, failed_logs (of jobs that failed), metrics, checkpoints, "
            "code and jobs, each a duration such as 30d or 1y, forever, or default.",
        ),
    ],
    json: AsJson = False,
) -> None:
    """Set how long data of ended jobs of a project is kept; kinds that are not named stay."""
    changes = parse_retain(retain)
    with connected(ctx) as client:
        view = client.retention.set_periods(project, **changes)
    if json:
        output.as_json(view)
        return
    for kind in _KINDS:
        own = "" if kind in view.own else "  (default)"
        print(f"{kind:<12} {view.periods[kind]}{own}")


def parse_retain(text: str) -> dict[str, str | None]:
    """Periods by kind from `logs=30d,jobs=1y`; None for `default`. Raises UserError."""
    found: dict[str, str | None] = {}
    for part in text.split(","):
        kind, equals, period = (one.strip() for one in part.partition("="))
        if kind not in _KINDS or not equals or not period:
            raise UserError(
                f"--retain: {part.strip()!r} is not a period",
                f"write KIND=PERIOD, such as logs=30d; the kinds are {', '.join(_KINDS)}",
            )
        if kind in found:
            raise UserError(f"--retain: {kind} is given twice")
        found[kind] = None if period == _DEFAULT else period
    return found


_DELETES = {"jobs": "the job", "logs": "its output"}
_EXPIRING: dict[str, Callable[[Any], Any]] = {
    "JOB": lambda one: one.label,
    "NAME": lambda one: one.name,
    "PROJECT": lambda one: one.project,
    "DELETES": lambda one: _DELETES.get(one.kind) or f"{one.items} checkpoints",
    "SIZE": lambda one: format_size(one.num_bytes),
}
_OPEN: dict[str, Callable[[Any], Any]] = {
    "DELETED": lambda one: one.label,
    "NAME": lambda one: one.name,
    "BY": lambda one: one.deleted_by,
    "TRIES": lambda one: one.tries,
    "NEXT TRY": lambda one: output.moment(one.next_try_at),
    "ERROR": lambda one: one.error,
}

_ABANDONED: dict[str, Callable[[Any], Any]] = {
    "GIVEN UP": lambda one: one.label,
    "NAME": lambda one: one.name,
    "BY": lambda one: one.abandoned_by,
    "COPIES": lambda one: one.num_checkpoints,
    "SIZE": lambda one: format_size(one.num_bytes),
    "IN": lambda one: ", ".join(one.stores),
}


@admin_app.command("retention")
def show_retention(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what the next retention sweep deletes.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the retention periods of the platform, deletions that are not complete, and what was deleted."""
    with connected(ctx) as client:
        view = client.retention.overview()
    if json:
        output.as_json(view)
        return
    output.facts([(kind, period) for kind, period in view.periods.items()])
    print(_stored(view.logs))
    for one in view.removed:
        print(f"deleted by {one.cause}: {one.items} {one.kind}, {format_size(one.num_bytes)}")
    if view.open_removals:
        print(f"checkpoints with files still to delete: {view.open_removals}")
    if view.deletions:
        output.listing(view.deletions, False, _OPEN, "")
    if view.abandoned:
        output.listing(view.abandoned, False, _ABANDONED, "")
    if not dry_run:
        return
    print("the next sweep deletes:")
    for size in view.expiring:
        print(f"  {size.items} {size.kind}, {format_size(size.num_bytes)}")
    if view.held:
        print(f"  {view.held} jobs stay, because something needs them")
    output.listing(view.expiring_jobs, False, _EXPIRING, "  no jobs and no checkpoints")


def _stored(logs: StoredLogsView) -> str:
    """Stored output and its quota, in words."""
    said = f"stored output of all jobs: {format_size(logs.num_bytes)}"
    if logs.limit_bytes is None:
        return f"{said}, no quota"
    said += f" of {format_size(logs.limit_bytes)}"
    if not logs.over_bytes:
        return said
    over = format_size(logs.over_bytes)
    return f"{said}; {over} above it are of jobs that run, are pinned, or failed not long ago"
