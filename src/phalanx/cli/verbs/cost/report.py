"""`phalanx cost`: slot time and money by group, or of one job."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, duration
from phalanx.cli.verbs.cost.plotting import plot_cost, trend_line
from phalanx.errors import UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import parse_study_label

if TYPE_CHECKING:
    from phalanx.schemas.api.cost import (
        AdviceView,
        CostReport,
        CostView,
        ForecastView,
        StorageCostView,
        UnitCostView,
    )

# Accounts with the letter of each in the bar.
_BAR = {
    "productive": "█",
    "saving": "▓",
    "starting": "░",
    "redone": "r",
    "lost_to_failure": "f",
    "lost_to_preemption": "p",
    "idle": "·",
}
_BAR_WIDTH = 24
_ADVICE: dict[str, Callable[[Any], Any]] = {
    "JOB": lambda one: f"j-{one.job}",
    "SAVES": lambda one: _saving(one),
    "FOUND": lambda one: one.evidence,
    "DO": lambda one: one.action,
}
_HOUR = 3600.0
_STORAGE = ("KEPT GB", "GB-MONTHS", "UPLOADED GB", "READ GB", "STORAGE USD", "TRANSFER USD")
_CSV_STORAGE = (
    *("kept_bytes", "gb_months", "uploaded_bytes", "read_bytes"),
    *("storage_usd", "transfer_usd"),
)
# Units with the number of them that a line is for; those that are always shown.
_UNITS = {
    "epoch": ("per epoch", 1),
    "step": ("per 1,000 steps", 1000),
    "sample": ("per million samples", 1_000_000),
    "token": ("per million tokens", 1_000_000),
}
_ALWAYS = ("epoch", "token")


class _WithReport(TyperGroup):
    """A group in which `cost` and `cost --by user` stand for `cost report` with the same words."""

    first = "report"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `report` before what is no verb of the group."""
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [self.first, *args]
        return super().parse_args(ctx, args)


cost_app = typer.Typer(
    name="cost",
    cls=_WithReport,
    help="What jobs used and cost: `cost --by user` or `cost j-12` reports, as `cost report` does.",
)


@cost_app.command(_WithReport.first)
def report(  # noqa: PLR0913
    ctx: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="One job, such as j-12; default: a report."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", help="project, user, job, study, pool, store, day, week, month or label:NAME."
        ),
    ] = "project",
    since: Annotated[
        str | None,
        typer.Option("--since", help="A day such as 2026-01-31, or a time ago such as 7d."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="The last day, written as --since.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only jobs of this user.")] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Only slots of this pool.")] = None,
    study: Annotated[
        str | None, typer.Option("--study", help="Only this study, such as s-3.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Groups at most.")] = 100,
    advice: Annotated[
        bool, typer.Option("--advice", help="Say what jobs could have saved, from measurements.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw cost by day into an SVG or PNG file."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: AsJson = False,
) -> None:
    """Show what jobs used and cost: slot-hours by account, and US dollars where slots have a price."""
    num = None if job is None else job_number(job)
    first, last = moment("--since", since), moment("--until", until)
    if advice:
        _show_advice(ctx, json, project=project, user=user, limit=limit)
        return
    filters: dict[str, Any] = {"project": project, "user": user, "pool": pool, "job": num}
    filters["study"] = None if study is None else _study(study)
    with connected(ctx) as client:
        if plot is not None:
            plot_cost(client, ctx.obj.invocation.cwd / plot, _now(), first, last, filters)
            return
        units = [] if num is None or first or last else unit_lines(client.job(num).unit_costs)
        group = "day" if num is not None else by
        found = client.costs.report(group, since=first, until=last, limit=limit, **filters)
        is_listed = not json and not as_csv and num is None
        trend = trend_line(client, _now(), filters) if is_listed and by != "store" else None
    if json:
        output.as_json(found)
    elif as_csv:
        write_csv(found)
    elif num is not None:
        output.facts([*cost_facts(found.total), *units])
    else:
        show_report(found, trend)


def _show_advice(ctx: typer.Context, json: bool, **wanted: Any) -> None:
    with connected(ctx) as client:
        told = client.costs.advice(**wanted)
    nothing = "nothing to advise: no job held enough slots for long enough, or none wasted much"
    output.listing(told, json, _ADVICE, nothing)


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)


def moment(option: str, text: str | None) -> datetime | None:
    """A day, or a time ago; None where the option was not given. Raises UserError."""
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        ago_s = duration(option, text)
        return _now() - timedelta(seconds=ago_s or 0)


def _study(text: str) -> int:
    num = parse_study_label(text)
    if num is None:
        raise UserError(f"{text!r} is not a study", "give its number, such as s-3")
    return num


def _saving(one: AdviceView) -> str:
    if one.size_bytes:
        usd = "" if one.usd is None else f", {one.usd:.2f} USD a month"
        return f"{one.size_bytes / 2**30:.1f} GiB{usd}"
    money = [] if one.usd is None else [f"{one.usd:.2f} USD"]
    return ", ".join([*money, *([f"{one.slot_hours:.1f} slot-hours"] if one.slot_hours else [])])


def cost_facts(one: CostView) -> list[tuple[str, Any]]:
    """The lines of one cost: slot-hours by account, and money."""
    accounts = one.accounts.model_dump()
    lines = [
        (name.replace("_", " "), f"{_hours(accounts[name])}{_share(accounts[name], one.held)}")
        for name in _BAR
        if accounts[name]
    ]
    return [
        ("slot-hours", _hours(one.held)),
        *lines,
        ("queued", _hours(one.accounts.queued) if one.accounts.queued else None),
        ("usd", money(one)),
        *_storage_facts(one.storage),
    ]


def unit_lines(units: Sequence[UnitCostView]) -> list[tuple[str, str]]:
    """What each unit has cost, as names and texts; a dash for epochs and tokens that were not reported."""
    known = {one.unit: one for one in units}
    lines = []
    for unit, (name, scale) in _UNITS.items():
        one = known.get(unit)
        if one is None:
            lines += [(name, "–")] if unit in _ALWAYS else []
            continue
        usd = "" if one.usd is None else f", {one.usd * scale:.4g} USD"
        about = " (estimated from a rate)" if one.estimated else ""
        lines.append((name, f"{one.slot_s * scale / _HOUR:.4g} slot-hours{usd}{about}"))
    return lines


def money(one: CostView) -> str | None:
    """The money of a cost with two digits; None where no slot had a price."""
    return None if one.usd is None else f"{one.usd:.2f}"


def _hours(slot_s: float) -> str:
    return f"{slot_s / _HOUR:.3f}" if slot_s < _HOUR else f"{slot_s / _HOUR:.1f}"


def _share(part: float, whole: float) -> str:
    return f" ({part / whole:.0%})" if whole else ""


def bar(one: CostView) -> str:
    """The accounts of held slots as a bar; each character is a share of them."""
    accounts = one.accounts.model_dump()
    if not one.held:
        return ""
    ends, done = [], 0.0
    for name in _BAR:
        done += accounts[name]
        ends.append(round(done / one.held * _BAR_WIDTH))
    widths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return "".join(mark * width for mark, width in zip(_BAR.values(), widths, strict=True))


def show_report(found: CostReport, trend: str | None = None) -> None:
    """Print a report as a table with a bar for each group; `trend` is a line about the last days."""
    groups = [(one.key or "-", one.cost) for one in found.groups]
    if len(groups) > 1:
        groups.append(("total", found.total))
    if found.by == "store":
        rows = ([key, *_storage_cells(one.storage)] for key, one in groups)
        output.table(["STORE", *_STORAGE], rows, "nothing was kept in that time")
        return
    heads = [
        found.by.upper(),
        "SLOT-HOURS",
        "WASTED",
        "IDLE",
        "QUEUED",
        "USD",
        "STORAGE USD",
        "USE",
    ]
    rows = ([key, *_cells(one)] for key, one in groups)
    output.table(heads, rows, "no job has used slots in that time")
    if found.forecast is not None:
        output.note(_forecast(found.forecast))
    if trend is not None:
        output.note(trend)
    if sys.stdout.isatty() and groups:
        marks = ", ".join(f"{mark} {name.replace('_', ' ')}" for name, mark in _BAR.items())
        output.note(f"use: {marks}")


def _forecast(one: ForecastView) -> str:
    """The present month in one line."""
    used, expected = (f"{hours:.1f}" for hours in (one.used_slot_hours, one.expected_slot_hours))
    usd = (
        ""
        if one.expected_usd is None
        else f" ({one.used_usd or 0:.2f} → {one.expected_usd:.2f} USD)"
    )
    trend = "" if one.trend is None else f"; the last week is {one.trend:.0%} of the one before"
    return f"this month: {used} slot-hours so far, {expected} expected{usd}{trend}"


def _cells(one: CostView) -> list[Any]:
    used = one.accounts
    return [
        *(_hours(one.held), _hours(one.wasted), _hours(used.idle), _hours(used.queued)),
        *(money(one), _storage_money(one.storage), bar(one)),
    ]


def _storage_cells(one: StorageCostView | None) -> list[Any]:
    if one is None:
        return [None] * len(_STORAGE)
    return [
        *(_gigabytes(one.kept_bytes), f"{one.gb_months:.3f}"),
        *(_gigabytes(one.uploaded_bytes), _gigabytes(one.read_bytes)),
        *(_cents(one.storage_usd), _cents(one.transfer_usd)),
    ]


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3f}"


def _cents(usd: Decimal | None) -> str | None:
    return None if usd is None else f"{usd:.2f}"


def _storage_money(one: StorageCostView | None) -> str | None:
    """The money of kept and moved bytes; None where neither had a price."""
    known = [] if one is None else [one.storage_usd, one.transfer_usd]
    found = [usd for usd in known if usd is not None]
    return _cents(sum(found, Decimal(0))) if found else None


def _storage_facts(one: StorageCostView | None) -> list[tuple[str, Any]]:
    if one is None:
        return []
    kept = f"{_gigabytes(one.kept_bytes)} GB kept, {one.gb_months:.4g} GB-months"
    moved = f"{_gigabytes(one.uploaded_bytes)} GB uploaded, {_gigabytes(one.read_bytes)} GB read"
    both = ((kept, one.storage_usd), (moved, one.transfer_usd))
    said = [text + ("" if usd is None else f": {usd:.4f} USD") for text, usd in both]
    moves = one.uploaded_bytes or one.read_bytes
    return [("storage", said[0]), ("transfer", said[1] if moves else None)]


def write_csv(found: CostReport) -> None:
    """Print a report as CSV, with slot-seconds by account."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    names: Sequence[str] = list(type(found.total.accounts).model_fields)
    stored = _CSV_STORAGE
    out.writerow([found.by, "held_slot_s", *(f"{name}_slot_s" for name in names), "usd", *stored])
    for one in found.groups:
        values = one.cost.accounts.model_dump()
        usd = "" if one.cost.usd is None else f"{one.cost.usd:f}"
        kept = {} if one.cost.storage is None else one.cost.storage.model_dump()
        cells = (kept.get(name) for name in stored)
        texts = (f"{cell:f}" if isinstance(cell, Decimal) else cell for cell in cells)
        out.writerow([one.key, one.cost.held, *(values[name] for name in names), usd, *texts])
