"""The verbs metrics, compare, report and prometheus-rules."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from csv import writer as csv_writer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.invocation import Invocation
from phalanx.cli.client.session import connected, job_number, job_numbers
from phalanx.cli.exits import STOP_ASKED
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobName, RoleName, one_rank
from phalanx.cli.verbs.tracking.runs import show_differing
from phalanx.core.contract.reporting import METRICS_CA, METRICS_TOKEN, METRICS_URL, ReportingPlace
from phalanx.core.curves import Reduce
from phalanx.core.telemetry.instruments import INSTRUMENTS, WORTH_SAYING
from phalanx.errors import NotFound, UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.telemetry import CurveView, MetricSeries
    from phalanx.schemas.api.tracking.runs import RunView
    from phalanx.sdk import PhalanxClient

_MOST_JOBS, _MOST_NAMES = 500, 20


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


def compare(  # noqa: PLR0913
    ctx: typer.Context,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB...]", help="Numbers of the jobs, such as j-12; a-12 for a whole array."
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            "-q",
            help="The runs that match instead, as in `phalanx runs`: 'tag:baseline'.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="Metric to compare; may be repeated. Default: those of the scripts."
        ),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="The rank that is shown.")] = 0,
    points: Annotated[
        int,
        typer.Option("--points", min=4, max=2000, help="Maximum number of points of each curve."),
    ] = 1000,
    reduce: Annotated[
        Reduce,
        typer.Option("--reduce", help="What an interval of a long curve is shown as."),
    ] = "extremes",
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="Write the points to this file; - is the standard output."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Compare up to 500 jobs: parameters that differ, and a row for each metric and job with its course."""
    if not jobs and query is None:
        raise UserError("name jobs, or a query", "phalanx compare --query 'tag:baseline since:7d'")
    with connected(ctx) as client:
        runs = _runs(client, jobs or (), query)
        nums = [one.job for one in runs]
        labels = {one.job: one.name for one in runs}
        wanted = name or _names_of_scripts(client, nums)
        if len(wanted) > _MOST_NAMES:
            raise UserError(f"{len(wanted)} metrics are too many", f"name at most {_MOST_NAMES}")
        found = (
            client.compare_metrics(
                nums, wanted, ranks=[rank], max_points=points, reduce=reduce
            ).series
            if wanted
            else []
        )
    if json:
        output.as_json(found)
    elif csv is not None:
        _write_csv(csv, found, labels)
    else:
        show_differing(runs)
        _show_comparison(found, wanted, nums, labels)


def _runs(client: PhalanxClient, jobs: Sequence[str], query: str | None) -> list[RunView]:
    """The runs to compare, in the order of the jobs, or newest first. Raises NotFound, UserError."""
    nums = list(dict.fromkeys(job_numbers(client, jobs)))
    terms = ([f"job:{','.join(map(str, nums))}"] if nums else []) + ([query] if query else [])
    if len(nums) <= _MOST_JOBS:
        page = client.runs.page(" ".join(terms), archived="include", limit=_MOST_JOBS)
    if len(nums) > _MOST_JOBS or page.cursor is not None:
        raise UserError("these are too many jobs to compare", f"at most {_MOST_JOBS}")
    if not query:
        found = {one.job: one for one in page.runs}
        for num in nums:
            if num not in found:
                client.job(num)  # raises NotFound
        return [found[num] for num in nums if num in found]
    if not page.runs:
        raise NotFound(f"no run matches {query!r}", "`phalanx runs` lists them")
    return page.runs


def _names_of_scripts(client: PhalanxClient, nums: Sequence[int]) -> list[str]:
    """The metrics that scripts of these jobs logged, those of the first job first."""
    found: dict[str, None] = {}
    for num in nums:
        if len(found) >= _MOST_NAMES:
            break
        names = client.metrics(num, ranks=[0], max_points=4).names
        found |= dict.fromkeys(one for one in names if one not in INSTRUMENTS)
    return list(found)[:_MOST_NAMES]


def _show_comparison(
    found: Sequence[CurveView], names: Sequence[str], nums: Sequence[int], labels: Mapping[int, str]
) -> None:
    order = {num: place for place, num in enumerate(nums)}
    rows = []
    for one in sorted(found, key=lambda one: (names.index(one.name), order[one.job])):
        known = [value for value in one.values if value is not None]
        rows.append(
            (
                one.name,
                f"j-{one.job}",
                labels[one.job],
                one.steps[-1],
                output.number(known[-1] if known else None),
                output.number(min(known, default=None)),
                output.number(max(known, default=None)),
                output.sparkline(one.values),
            )
        )
    heads = ("METRIC", "JOB", "NAME", "STEP", "LAST", "MIN", "MAX", "COURSE")
    output.table(heads, rows, "no metrics yet")
    silent = [f"j-{num}" for num in nums if num not in {one.job for one in found}]
    if silent and found:
        output.note(f"without these metrics: {', '.join(silent)}")


def _write_csv(path: Path, found: Sequence[CurveView], labels: Mapping[int, str]) -> None:
    """One line for each point. A value that is not finite is empty."""
    with nullcontext(sys.stdout) if str(path) == "-" else path.open("w", newline="") as file:
        lines = csv_writer(file, lineterminator="\n")
        lines.writerow(("job", "job_name", "metric", "rank", "step", "value"))
        for one in found:
            head = (one.job, labels[one.job], one.name, one.rank)
            lines.writerows((*head, *point) for point in zip(one.steps, one.values, strict=True))


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


def prometheus_rules() -> None:
    """Print recording rules for Prometheus: names of metrics that other platforms have."""
    import yaml

    from phalanx.core.metrics.aliases import rule_file

    typer.echo(yaml.safe_dump(rule_file(), sort_keys=False, width=10_000), nl=False)


def report(
    values: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Metrics, such as loss=0.3.")
    ],
    step: Annotated[int, typer.Option("--step", min=0, help="The step that they belong to.")],
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="Number of epochs that are complete.")
    ] = None,
) -> None:
    """Send metrics from inside a job. Exit code 104: the script should save and exit."""
    from phalanx.schemas.api.telemetry import PostedPoint
    from phalanx.sdk import PhalanxClient

    env = Invocation.of_this_process().env
    url, token = env.get(METRICS_URL, ""), env.get(METRICS_TOKEN, "")
    place = ReportingPlace.named_by(token)
    if place is None or not url:
        raise UserError(
            f"there is no {METRICS_URL} and {METRICS_TOKEN}", "call this from a script of a job"
        )
    points = [
        PostedPoint(name=name, value=value, step=step, epoch=epoch)
        for name, value in (_value(one) for one in values)
    ]
    base, _, rank = url.rpartition("?rank=")
    ca = Path(env[METRICS_CA]).read_text() if env.get(METRICS_CA) else ""
    with PhalanxClient(base.partition("/api/")[0], token, ca=ca) as client:
        answer = client.post_metrics(place.job, points, rank=int(rank))
    if answer.stop:
        said = f"{answer.reason}: {answer.message}" if answer.message else answer.reason
        output.note(f"save and exit now: {said}")
        raise typer.Exit(STOP_ASKED)


def _value(text: str) -> tuple[str, Any]:
    """`loss=0.3` as name and value."""
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = None
    if not name or not equals or number is None:
        raise UserError(f"{text!r} is not a metric", "write NAME=VALUE, such as loss=0.3")
    return name, number if math.isfinite(number) else str(number)
