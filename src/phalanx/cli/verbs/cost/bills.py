"""`phalanx cost import`, `bills` and `reconcile`: bills of cloud providers beside the ledger."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.cost.anomalies import cost_app
from phalanx.cli.verbs.pools import group
from phalanx.errors import NotFound, UserError

if TYPE_CHECKING:
    from phalanx.core.cost.bills import BillLine
    from phalanx.schemas.api.money.bills import BillLineRequest, ReconciledView, ReconciliationView

__all__ = ["bills_app", "cost_app"]
_AT_ONCE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BILLS: dict[str, Callable[[Any], Any]] = {
    "BILL": lambda one: one.name,
    "LINES": lambda one: one.num_lines,
    "USD": lambda one: f"{one.usd:.2f}",
    "IMPORTED": lambda one: output.moment(one.imported_at),
    "BY": lambda one: one.imported_by,
}
_QUANTITIES = {"slot": "slot-hours", "storage": "GB-months", "transfer": "GB", "other": ""}
_FIELDS = (
    *("day", "kind", "place", "slot_type", "billed_usd", "ledger_usd", "difference_usd"),
    *("quantity", "verdict"),
)


@cost_app.command("import")
def import_bill(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="A billing export, also as FILE.csv.gz.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the bill; default: that of the file.")
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--mapping", metavar="FILE", help="Columns and rules of another format."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove the bill of this name first.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the file and say what it has; import nothing.")
    ] = False,
) -> None:
    """Import a billing export: AWS, Google Cloud, Azure, FOCUS, or a CSV file with our columns.

    The whole file is checked before the first line is sent. A line that is known counts once, so an import
    that was interrupted, or the same file again, may be repeated.
    """
    from phalanx.cli.verbs.cost.bill_file import bill_lines
    from phalanx.schemas.bill_mapping import load_bill_mapping

    session: Session = ctx.obj
    path = session.invocation.cwd / file
    rules = None if mapping is None else load_bill_mapping(session.invocation.cwd / mapping)
    label = path.name if name is None else name
    _check_name(label)
    sums: dict[str, tuple[int, int]] = {}
    for line in bill_lines(path, rules):
        what = f"{line.kind.value} {line.place or 'of an unknown place'}"
        what = "other" if line.kind.value == "other" else what
        count, nano = sums.get(what, (0, 0))
        sums[what] = (count + 1, nano + line.nano_usd)
    if not sums:
        raise UserError(f"{path} has no lines")
    if dry_run:
        rows = [[what, count, f"{nano / 1e9:.2f}"] for what, (count, nano) in sorted(sums.items())]
        output.table(["FOR", "LINES", "USD"], rows, "")
        return
    with connected(ctx) as client:
        if replace:
            try:
                client.costs.remove_bill(label)
            except NotFound:
                output.note(f"there was no bill {label}")
        new = known = 0
        for part in _parts(bill_lines(path, rules)):
            done = client.costs.import_bill(label, part)
            new, known = new + done.new, known + done.known
        total = sum(nano for _, nano in sums.values())
        output.note(
            f"{label}: {new} new lines, {known} known before; the file has {total / 1e9:.2f} USD"
        )


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 128 or not name.isprintable() or "/" in name:
        raise UserError(
            f"{name!r} cannot name a bill", "give --name with 1 to 128 characters, no /"
        )


def _parts(lines: Iterator[BillLine]) -> Iterator[list[BillLineRequest]]:
    from decimal import Decimal

    from phalanx.schemas.api.money.bills import BillLineRequest

    while part := list(islice(lines, _AT_ONCE)):
        yield [
            BillLineRequest(
                id=one.id,
                begin=_EPOCH + timedelta(microseconds=one.from_at),
                end=_EPOCH + timedelta(microseconds=one.to_at),
                kind=one.kind.value,
                place=one.place,
                slot_type=one.slot_type,
                usd=Decimal(one.nano_usd).scaleb(-9),
            )
            for one in part
        ]


def list_bills(ctx: typer.Context, json: AsJson = False) -> None:
    """List imported bills."""
    with connected(ctx) as client:
        found = client.costs.bills()
    output.listing(found, json, _BILLS, "no bills; `phalanx cost import FILE.csv` imports one")


bills_app = group("bills", "Imported bills of cloud providers: list, rm.", list_bills)
cost_app.add_typer(bills_app)


@bills_app.command("rm")
def remove_bill(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="BILL", help="Its name.")]
) -> None:
    """Remove a bill with its lines."""
    with connected(ctx) as client:
        client.costs.remove_bill(name)


@cost_app.command("reconcile")
def reconcile(
    ctx: typer.Context,
    month: Annotated[str, typer.Option("--month", help="A month (UTC), such as 2026-11.")],
    by: Annotated[
        Literal["month", "day"], typer.Option("--by", help="Compare the whole month, or each day.")
    ] = "month",
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, max=100, help="Percent that may differ.")
    ] = 1.0,
    differing: Annotated[
        bool, typer.Option("--differing", help="Leave out what is matched.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: AsJson = False,
) -> None:
    """Compare the imported bills of a month with the ledger, by pool, slot type and store.

    Each row is matched, over (more was billed), under (less was billed) or unexplained (the ledger has
    nothing of the kind). Prices are suggested with which the ledger would have had what was billed.
    """
    with connected(ctx) as client:
        found = client.costs.reconcile(month, by=by, tolerance=tolerance)
    rows = [one for one in found.rows if not differing or one.verdict != "matched"]
    if json:
        output.as_json(found)
    elif as_csv:
        _write_csv(rows)
    else:
        _show(found, rows, by)


def _show(found: ReconciliationView, rows: Sequence[ReconciledView], by: str) -> None:
    day = ["DAY"] if by == "day" else []
    heads = [*day, "KIND", "POOL OR STORE", "TYPE", "BILLED", "LEDGER", "DIFFERENCE", "LEDGER HAS"]
    cells = [
        [
            *([one.day] if day else []),
            *(one.kind, one.place or "unknown", one.slot_type or "any"),
            *(f"{usd:.2f}" for usd in (one.billed_usd, one.ledger_usd, one.difference_usd)),
            f"{one.quantity:.1f} {_QUANTITIES[one.kind]}" if one.quantity else None,
            one.verdict,
        ]
        for one in rows
    ]
    output.table([*heads, "VERDICT"], cells, f"nothing was billed or used in {found.month}")
    sums = ", ".join(f"{name} {usd:.2f}" for name, usd in sorted(found.by_verdict.items()) if usd)
    output.note(
        f"{found.month}: billed {found.billed_usd:.2f} USD{f' ({sums})' if sums else ''}, "
        f"ledger {found.ledger_usd:.2f} USD"
    )
    for one in found.prices:
        output.note(f"as billed: {one.command}")


def _write_csv(rows: Sequence[ReconciledView]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(_FIELDS)
    for one in rows:
        values = one.model_dump()
        money = {name: f"{values[name]:f}" for name in _FIELDS if name.endswith("_usd")}
        out.writerow(
            [
                "" if cell is None else cell
                for cell in ({**values, **money}[name] for name in _FIELDS)
            ]
        )
