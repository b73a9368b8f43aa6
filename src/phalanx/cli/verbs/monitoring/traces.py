"""`phalanx trace`: the spans of a job with their durations, or as OTLP in JSON."""

from __future__ import annotations

import json as json_format
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import connected, one_job
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import JobName
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.health.traces import SpanView, TraceView

HEADINGS = ("SPAN", "AFTER", "DURATION", "RESULT", "ABOUT")
# Attributes that tell spans of one name apart, in the order of the column.
_ABOUT = ("cause", "reason", "rank", "step")


def trace(
    ctx: typer.Context,
    job: JobName,
    as_otlp: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print spans that have ended as OTLP in JSON, which collectors take at /v1/traces.",
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=10, max=10_000, help="Spans; of more, the newest.")
    ] = 2000,
) -> None:
    """Show where the time of a job went: queue, start, first step, saves, failures and recovery, as spans.

    AFTER is the time since the submission.
    """
    with connected(ctx) as client:
        num = one_job(client, job)
        view = client.traces.of_job(num, limit=limit)
    if as_otlp:
        from phalanx.sdk.traces import otlp_document

        print(json_format.dumps(otlp_document(view), indent=2))
        return
    output.table(HEADINGS, rows(view), "the job has no spans")
    output.note(f"trace {view.trace_id}")
    if view.truncated:
        output.note("older spans are left out; --limit shows more")


def rows(view: TraceView) -> Iterator[list[str]]:
    """A row for each span: what a span contains follows it, indented."""
    known = {one.span_id for one in view.spans}
    inside: dict[str | None, list[SpanView]] = defaultdict(list)
    for one in view.spans:
        above = one.parent_id if one.link is None else one.link.span_id
        inside[above if above in known else None].append(one)
    start = min((one.begin for one in view.spans), default=None)
    waiting = [(one, 0) for one in reversed(inside[None])]
    while waiting:
        one, depth = waiting.pop()
        after = 0.0 if start is None else (one.begin - start).total_seconds()
        lasted = output.lasted(one.begin, one.end) + ("" if one.end is not None else " so far")
        yield [
            "  " * depth + _named(one),
            format_duration(after),
            lasted,
            {None: "", True: "ok", False: "failed"}[one.ok],
            _about(one),
        ]
        waiting += [(each, depth + 1) for each in reversed(inside[one.span_id])]


def _named(one: SpanView) -> str:
    number = one.attributes.get(f"phalanx.{one.name}")
    return one.name if number is None or one.name == "job" else f"{one.name} {number}"


def _about(one: SpanView) -> str:
    pairs = ((name, one.attributes.get(f"phalanx.{name}")) for name in _ABOUT)
    return " ".join(f"{name}={value}" for name, value in pairs if value is not None)
