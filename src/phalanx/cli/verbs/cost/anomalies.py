"""`phalanx cost anomalies`: days that cost much more than expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.cost.report import cost_app
from phalanx.kit.text import job_label

if TYPE_CHECKING:
    from phalanx.schemas.api.money.anomalies import AnomalyView

__all__ = ["anomalies", "cost_app"]
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "ID": lambda one: one.id,
    "OF": lambda one: f"{one.scope} {one.name}",
    "DAYS": lambda one: _days(one),
    "EXTRA": lambda one: _amount(one.extra_usd, one.extra_slot_hours),
    "EXPECTED": lambda one: _amount(one.expected_usd, one.expected_slot_hours),
    "STATE": lambda one: one.state,
    "CHANGED MOST": lambda one: _cause(one),
    "ALSO": lambda one: ", ".join(one.also) or None,
}


@cost_app.command("anomalies")
def anomalies(
    ctx: typer.Context,
    ack: Annotated[
        int | None,
        typer.Option("--ack", metavar="ID", min=1, help="Say that this anomaly was seen."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are closed.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 100,
    json: AsJson = False,
) -> None:
    """List days on which a project, user, pool or label cost much more than expected.

    An anomaly is open until a whole day is as expected again.
    """
    with connected(ctx) as client:
        if ack is not None:
            found = client.costs.acknowledge(ack)
            if json:
                output.as_json(found)
            else:
                output.note(f"anomaly {found.id} is {found.state}: {found.message}")
            return
        known = client.costs.anomalies(state="all" if every else "live", limit=limit)
    output.listing(known, json, _COLUMNS, "no anomalies: every day is as expected")


def _days(one: AnomalyView) -> str:
    first, last = one.first_day.isoformat(), one.last_day.isoformat()
    return first if first == last else f"{first} to {last}"


def _amount(usd: Any, slot_hours: float | None) -> str | None:
    if usd is not None:
        return f"{usd:.2f} USD"
    return None if slot_hours is None else f"{slot_hours:.1f} slot-hours"


def _cause(one: AnomalyView) -> str | None:
    cause = one.cause
    money = (cause.job_extra_usd, cause.pool_extra_usd)
    usd = ["" if amount is None else f" +{amount:.2f} USD" for amount in money]
    parts = [] if cause.job is None else [f"{job_label(cause.job)}{usd[0]}"]
    parts += [] if cause.pool is None else [f"pool {cause.pool}{usd[1]}"]
    if cause.account is not None:
        hours = f"{cause.account_extra_slot_hours:.1f} slot-hours"
        parts.append(f"{cause.account.replace('_', ' ')} +{hours}")
    return ", ".join(parts) or None
