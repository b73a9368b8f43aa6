"""The verb metrics."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli import output
from phalanx.cli.options import AsJson, JobName, one_rank
from phalanx.cli.session import Session, job_number


def metrics(
    ctx: typer.Context,
    job: JobName,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only this one; may be repeated.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Only this rank.")] = None,
    points: Annotated[
        int, typer.Option("--points", min=2, help="At most so many points of each series.")
    ] = 200,
    json: AsJson = False,
) -> None:
    """Show what a job has logged: the last value, the range and the course of every metric."""
    num = job_number(job)
    session: Session = ctx.obj
    with session.client() as client:
        found = client.metrics(num, names=name or (), ranks=one_rank(rank), max_points=points)
    if json:
        output.as_json(found)
        return
    rows = []
    for one in found.series:
        known = [value for value in one.values if value is not None]
        rows.append(
            (
                one.name,
                one.rank,
                one.steps[-1] if one.steps else None,
                output.number(known[-1] if known else None),
                output.number(min(known, default=None)),
                output.number(max(known, default=None)),
                output.sparkline(one.values),
            )
        )
    output.table(
        ("METRIC", "RANK", "STEP", "LAST", "MIN", "MAX", "COURSE"), rows, "nothing was logged yet"
    )
