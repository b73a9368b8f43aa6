"""The verb runs: find runs by their parameters, metrics and tags, and export them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.tracking.export import rows_of, write_arrow, write_csv, write_parquet
from phalanx.core.experiments.parameters import differing, text_of

if TYPE_CHECKING:
    from phalanx.schemas.api.tracking.runs import RunView

MOST_EXPORTED = 100_000
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", help="Show this metric; may be repeated. Default: of the scripts."),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param", help="Show this parameter; may be repeated. Default: those that differ."
    ),
]
CsvFile = Annotated[
    Path | None,
    typer.Option("--csv", help="Write all runs to this file; - is the standard output."),
]
ArrowFile = Annotated[
    Path | None,
    typer.Option("--arrow", help="Write all runs to this file, in the format of Arrow files."),
]
ParquetFile = Annotated[
    Path | None, typer.Option("--parquet", help="Write all runs to this Parquet file.")
]
_FEW_PARAMS, _FEW_METRICS, _LONGEST, _MOST_SIDE_BY_SIDE = 5, 4, 40, 6


def runs(  # noqa: PLR0913 (one parameter for each option)
    ctx: typer.Context,
    query: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUERY...]",
            help="Terms that all match: 'metric:val_acc>0.9' 'param:lr<1e-3' tag:baseline state:succeeded "
            "user:ada since:7d.",
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            help="metric:NAME, metric:max(NAME), param:NAME, or what `phalanx ps` sorts by; - in front: "
            "the largest first.",
        ),
    ] = "-num",
    metric: Metrics = None,
    param: Parameters = None,
    archived: Annotated[
        bool, typer.Option("--all-archived", help="Archived runs beside the others.")
    ] = False,
    cursor: Annotated[str | None, typer.Option(help="Continue behind an earlier page.")] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-l", min=1, max=MOST_EXPORTED, help="Maximum number of runs."),
    ] = None,
    csv: CsvFile = None,
    arrow: ArrowFile = None,
    parquet: ParquetFile = None,
    json: AsJson = False,
) -> None:
    """Find runs by parameters, metrics, tags and states; show, sort or export them.

    A table shows the last value of each metric. A file has all runs that match, or --limit.
    """
    text = " ".join(query or ())
    exporting = any(one is not None for one in (csv, arrow, parquet))
    wanted: dict[str, Any] = {
        "sort": sort,
        "metrics": metric or (),
        "archived": "include" if archived else "exclude",
    }
    more = None
    with connected(ctx) as client:
        if exporting:
            found = list(islice(client.runs.every(text, **wanted), limit or MOST_EXPORTED))
        else:
            page = client.runs.page(text, **wanted, cursor=cursor, limit=min(limit or 50, 500))
            found, more = page.runs, page.cursor
    if json:
        output.as_json(found)
    elif exporting:
        rows = rows_of(found)
        for path, write in ((csv, write_csv), (arrow, write_arrow), (parquet, write_parquet)):
            if path is not None:
                write(path, rows)
    else:
        output.listing(found, False, _columns(found, metric or (), param or ()), "no such runs")
    if more is not None:
        output.note(f"there are more: repeat the command with --cursor {more}")


def _columns(
    found: Sequence[RunView], metrics: Sequence[str], params: Sequence[str]
) -> Mapping[str, Callable[[RunView], Any]]:
    columns: dict[str, Callable[[RunView], Any]] = {
        "RUN": lambda one: one.label,
        "NAME": lambda one: one.name,
        "STATE": lambda one: one.state,
    }
    names = params or differing([one.params for one in found])[:_FEW_PARAMS]
    for name in names:
        columns[name] = _param(name)
    for name in metrics or list(_metric_names(found))[:_FEW_METRICS]:
        columns[name] = _metric(name)
    if any(one.tags for one in found):
        columns["TAGS"] = lambda one: " ".join(one.tags)
    if any(one.group for one in found):
        columns["GROUP"] = lambda one: one.group
    columns["SUBMITTED"] = lambda one: output.ago(one.submitted_at)
    return columns


def _metric_names(found: Sequence[RunView]) -> Iterator[str]:
    return iter(dict.fromkeys(name for one in found for name in one.metrics))


def _param(name: str) -> Callable[[RunView], str]:
    def cell(one: RunView) -> str:
        text = text_of(one.params[name]) if name in one.params else ""
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

    return cell


def _metric(name: str) -> Callable[[RunView], str]:
    return lambda one: output.number(one.metrics[name].last) if name in one.metrics else ""


def show_differing(found: Sequence[RunView]) -> None:
    """Print the parameters that differ: a column for each run; of more than six runs, only their names."""
    names = differing([one.params for one in found])
    if not names:
        return
    if len(found) > _MOST_SIDE_BY_SIDE:
        output.note(f"{len(names)} parameters differ: {', '.join(names[:20])}")
        return
    heads = ["PARAMETER", *(one.label for one in found)]
    output.table(heads, ([name, *(_param(name)(one) for one in found)] for name in names), "")
    print()
