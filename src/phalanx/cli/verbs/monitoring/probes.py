"""`phalanx probes`: whether each pool runs jobs, as its newest probe has shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson

if TYPE_CHECKING:
    from phalanx.schemas.api.health.alerts import ProbeView

_HEADS = ("POOL", "RESULT", "JOB", "STATE", "START", "FIRST STEP", "END", "MESSAGE")


def probes(ctx: typer.Context, json: AsJson = False) -> None:
    """Show the newest probe job of each pool: whether it ran, and how long it took."""
    with connected(ctx) as client:
        found = client.probes()
    if json:
        output.as_json(found)
        return
    output.table(_HEADS, [_row(one) for one in found], "no pool is probed")


def _row(one: ProbeView) -> list[str]:
    result = {None: "none yet", True: "ok", False: "failed"}[one.ok]
    return [
        one.pool,
        result if one.probed else f"{result}, off",
        one.job or "-",
        one.state or "-",
        *(_seconds(value) for value in (one.start_s, one.first_step_s, one.end_s)),
        one.message,
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}s"
