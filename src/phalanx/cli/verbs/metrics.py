"""The verb metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobName, RoleName, one_rank
from phalanx.core.telemetry.instruments import INSTRUMENTS, WORTH_SAYING

if TYPE_CHECKING:
    from phalanx.schemas.api.telemetry import MetricSeries


def metrics(
    ctx: typer.Context,
    job: JobName,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only this metric; may be repeated.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Only this rank.")] = None,
    role: RoleName = None,
    points: Annotated[
        int,
        typer.Option(
            "--points", min=4, max=100_000, help="Maximum number of points of each series."
        ),
    ] = 200,
    json: AsJson = False,
) -> None:
    """Show the metrics of a job: last value, range and course of every series."""
    num = job_number(job)
    with connected(ctx) as client:
        found = client.metrics(
            num, names=name or (), ranks=one_rank(rank), max_points=points, role=role
        )
    if json:
        output.as_json(found)
        return
    rows = []  # metrics of the script first, then those that Phalanx measures
    for one in sorted(found.series, key=lambda one: one.name in INSTRUMENTS):
        known = [value for value in one.values if value is not None]
        rows.append(
            (
                one.name,
                f"{one.rank} {one.role}" if one.role else one.rank,
                one.steps[-1] if one.steps else None,
                output.number(known[-1] if known else None),
                output.number(min(known, default=None)),
                output.number(max(known, default=None)),
                output.sparkline(one.values),
            )
        )
    output.table(("METRIC", "RANK", "STEP", "LAST", "MIN", "MAX", "COURSE"), rows, "no metrics yet")
    for line in lost_time(found.series):
        typer.echo(line)


def lost_time(series: Sequence[MetricSeries]) -> list[str]:
    """A sentence for each rank that spends more than a tenth of its time waiting for data."""
    found = []
    for one in series:
        shares = [value for value in one.values if value is not None]
        if one.name != "data_wait_fraction" or not shares:
            continue
        mean = sum(shares) / len(shares)
        if mean > WORTH_SAYING:
            found.append(f"rank {one.rank} spends {mean:.0%} of its time waiting for data")
    return found
