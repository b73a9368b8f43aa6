"""`phalanx budgets`: list, set and remove budgets of projects, users and jobs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.pools import group
from phalanx.errors import UserError

_Scope = Annotated[
    Literal["project", "user", "job"], typer.Argument(metavar="SCOPE", help="project, user or job.")
]
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the project or user; number of the job.")
]
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "BUDGET": lambda one: one.label,
    "USD": lambda one: one.usd,
    "SLOT-HOURS": lambda one: None if one.slot_hours is None else f"{one.slot_hours:g}",
    "PERIOD": lambda one: one.period,
    "USED": lambda one: f"{one.used_percent} %",
    "STATE": lambda one: one.state,
    "LAST ALERT": lambda one: one.alerts[-1].message if one.alerts else None,
}


def list_budgets(ctx: typer.Context, json: AsJson = False) -> None:
    """List budgets with what was used of them."""
    with connected(ctx) as client:
        found = client.costs.budgets()
    output.listing(found, json, _COLUMNS, "no budgets; `phalanx budgets set` makes one")


budgets_app = group("budgets", "Budgets of projects, users and jobs: list, set, rm.", list_budgets)


@budgets_app.command("set")
def set_budget(  # noqa: PLR0913
    ctx: typer.Context,
    scope: _Scope,
    name: _Name,
    usd: Annotated[str | None, typer.Option("--usd", help="US dollars, such as 400.")] = None,
    slot_hours: Annotated[float | None, typer.Option("--slot-hours", min=0)] = None,
    per: Annotated[
        Literal["total", "month"], typer.Option("--per", help="For all time, or each month (UTC).")
    ] = "total",
    warn: Annotated[str, typer.Option("--warn", help="Percents that are told.")] = "50,80",
    pause_at: Annotated[
        int, typer.Option("--pause-at", min=100, max=1000, help="Percent at which jobs pause.")
    ] = 110,
) -> None:
    """Set or change a budget: at 100 % no job of it starts, at --pause-at its running jobs pause."""
    from phalanx.schemas.api.cost import SetBudgetRequest

    limits = SetBudgetRequest.model_construct(
        usd=None if usd is None else _decimal(usd),
        slot_hours=slot_hours,
        period=per,
        warn=_percents(warn),
        pause_percent=pause_at,
    )
    if usd is None and slot_hours is None:
        raise UserError("no limit is given", "write --usd 400, --slot-hours 1000 or both")
    with connected(ctx) as client:
        view = client.costs.set_budget(scope, _key(scope, name), limits)
    print(f"{view.label}: {view.used_percent} % used, {view.state}")


@budgets_app.command("rm")
def remove_budget(ctx: typer.Context, scope: _Scope, name: _Name) -> None:
    """Remove a budget; what it held or paused goes on."""
    with connected(ctx) as client:
        client.costs.remove_budget(scope, _key(scope, name))


def _key(scope: str, name: str) -> str:
    return str(job_number(name)) if scope == "job" else name


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise UserError(f"--usd: {text!r} is no number", "write one such as 400 or 12.50") from None


def _percents(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",") if one.strip()]
    except ValueError:
        raise UserError(f"--warn: {text!r}", "write percents such as 50,80") from None
