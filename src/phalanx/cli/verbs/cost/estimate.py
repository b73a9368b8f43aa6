"""`phalanx estimate`: what a job will probably use and cost, before it is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.cost import EstimatePointView, EstimateView


def estimate(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job spec in YAML.")],
    json: AsJson = False,
) -> None:
    """Show what a job will probably use and cost, from jobs that have ended; submits nothing."""
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import load_spec, resolved

    session: Session = ctx.obj
    spec = load_spec(session.invocation.cwd / file)
    request = SubmitRequest(spec=resolved(spec), owner=session.invocation.owner())
    with connected(ctx) as client:
        found = client.submit(request, dry_run=True).estimate
    if json:
        output.as_json(found)
    elif found is None:
        output.note("this control plane makes no estimates")
    else:
        output.facts(_lines(found))
        for said in found.warnings:
            output.note(f"warning: {said}")


def _lines(found: EstimateView) -> list[tuple[str, str | None]]:
    return [
        ("half of such jobs", _text(found.p50)),
        ("nine of ten", _text(found.p90)),
        ("known from", found.basis),
    ]


def _text(one: EstimatePointView | None) -> str | None:
    if one is None:
        return None
    usd = "" if one.usd is None else f", {one.usd:.2f} USD"
    hours = f"{output.number(one.slot_hours)} slot-hours"
    return f"{hours}{usd} ({format_duration(round(one.duration_s))} on all slots)"
