"""`phalanx slo`: objectives of job classes, their error budgets, indicators, rules and reviews."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.checkpoint_locations import locate
from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.monitoring.slo_review import (
    HEADS,
    ReviewFacts,
    objective_row,
    review_text,
    sentences,
)
from phalanx.errors import UserError
from phalanx.kit.clock import SystemClock

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import EventView
    from phalanx.sdk import PhalanxClient

_MOST_FAILED = 1000
slo_app = typer.Typer(
    name="slo",
    help="Objectives of job classes: what was reached, error budgets, burn rates, and their reviews.",
    no_args_is_help=True,
)
_Days = Annotated[int, typer.Option("--days", min=3, max=90, help="Period of the error budgets.")]
_Project = Annotated[str | None, typer.Option("--project", help="Only the jobs of this project.")]


@slo_app.command("list")
def list_objectives(
    ctx: typer.Context, days: _Days = 30, project: _Project = None, json: AsJson = False
) -> None:
    """List the objectives of job classes: what was reached, and what is left of the error budgets."""
    with connected(ctx) as client:
        found = client.objectives(days=days, project=project)
    if json:
        output.as_json(found)
        return
    output.table(HEADS, [objective_row(one) for one in found.objectives], "no objectives")
    for line in sentences(found):
        output.note(line)


@slo_app.command("review")
def review(
    ctx: typer.Context,
    week: Annotated[bool, typer.Option("--week", help="The last 7 days: failures.")] = False,
    month: Annotated[
        bool,
        typer.Option("--month", help="The last 30 days: also cost, quotas, checkpoints."),
    ] = False,
    project: _Project = None,
    scrub: Annotated[
        list[str] | None,
        typer.Option(
            "--scrub",
            metavar="WHERE",
            help="--month: also read all checkpoints of this path, job or URL, as "
            "`phalanx checkpoints scrub` does; may be repeated.",
        ),
    ] = None,
) -> None:
    """Print a review of a week or a month as Markdown."""
    if week == month:
        raise UserError("a review is of one period", "give either --week or --month")
    if scrub and not month:
        raise UserError("--scrub is for the review of a month", "give --month with it")
    days = 30 if month else 7
    with connected(ctx) as client:
        facts = _facts(client, days, project, whole=month)
    scrubbed: dict[str, str] = {}
    for where in scrub or ():
        scrubbed |= locate(where, ctx.obj).scrub()
    typer.echo(review_text(replace(facts, scrubbed=scrubbed)))


def _facts(client: PhalanxClient, days: int, project: str | None, *, whole: bool) -> ReviewFacts:
    now = datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    since = now - timedelta(days=days)
    failed = client.every_job(states=["failed"], ended_from=since, project=project)
    return ReviewFacts(
        title="month" if whole else "week",
        project=project,
        found=client.objectives(days=days, project=project),
        failed=list(itertools.islice(failed, _MOST_FAILED)),
        cost=client.costs.report("project", since=since, project=project) if whole else None,
        quotas=client.quotas(project=project).quotas if whole else [],
        damaged=_damaged(client, since, project) if whole else None,
    )


def _damaged(client: PhalanxClient, since: datetime, project: str | None) -> list[EventView]:
    """The events of checkpoints that were set aside since a time."""
    found: list[EventView] = []
    after, more = 0, True
    while more:
        page = client.live.feed(project=project, kinds=["checkpoint_quarantined"], after=after)
        found += [one for one in page.events if one.at >= since]
        after, more = page.cursor, page.more
    return found


@slo_app.command("indicators")
def indicators(json: AsJson = False) -> None:
    """List the indicators M1 to M15: target, name of the series that `phalanx slo rules` records."""
    from phalanx.core.slo.indicators import INDICATORS

    if json:
        keys = ("code", "title", "target", "recorded", "query", "note")
        output.as_json([{key: getattr(one, key) for key in keys} for one in INDICATORS])
        return
    rows = [(one.code, one.title, one.target, one.recorded) for one in INDICATORS]
    output.table(("INDICATOR", "MEANING", "TARGET", "SERIES"), rows, "no indicators")


@slo_app.command("rules")
def rules() -> None:
    """Print recording rules for Prometheus: shares of bad events by job class, and indicators."""
    from phalanx.core.slo.recording import slo_rule_file

    _print([slo_rule_file()])


@slo_app.command("openslo")
def export_openslo(ctx: typer.Context, days: _Days = 30) -> None:
    """Print the objectives of every class as documents of OpenSLO v1."""
    from phalanx.core.slo.recording import ExportedObjective, openslo

    with connected(ctx) as client:
        found = client.objectives(days=days).objectives
    given = [
        ExportedObjective(one.job_class, one.objective, one.target, one.limit_s) for one in found
    ]
    _print(openslo(given, days))


def _print(documents: list[dict[str, Any]]) -> None:
    import yaml

    text = yaml.safe_dump_all(documents, sort_keys=False, width=10_000, allow_unicode=True)
    typer.echo(text, nl=False)
