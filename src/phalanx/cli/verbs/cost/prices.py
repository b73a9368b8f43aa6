"""`phalanx prices`: the price table with its history."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.cli.verbs.pools import group
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.cost_prices import PriceRequest

_MAX_BYTES = 1 << 20
_FIELDS = ("kind", "pool", "slot_type", "spot", "store", "direction", "usd", "valid_from")
_SPOT = {"": None, "any": None, "yes": True, "true": True, "no": False, "false": False}
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "KIND": lambda one: one.kind,
    "POOL OR STORE": lambda one: one.pool or one.store or "any",
    "SLOT TYPE": lambda one: (
        one.slot_type or ("any" if _is_of_slots(one) else one.direction or None)
    ),
    "SPOT": lambda one: _spot(one),
    "USD": lambda one: f"{one.usd:f}",
    "UNIT": lambda one: one.unit,
    "FROM": lambda one: output.moment(one.valid_from),
    "SET BY": lambda one: one.set_by,
}
_EMPTY = "no prices; `phalanx prices set slot 2.50 --pool gpu` sets one"


def _is_of_slots(one: Any) -> bool:
    return one.kind in ("slot", "cpu")


def _spot(one: Any) -> str | None:
    if not _is_of_slots(one):
        return None
    return "any" if one.spot is None else ("yes" if one.spot else "no")


def list_prices(ctx: typer.Context, json: AsJson = False) -> None:
    """List the prices that count now, and those that begin later."""
    with connected(ctx) as client:
        output.listing(client.costs.prices(), json, _COLUMNS, _EMPTY)


prices_app = group(
    "prices",
    "Prices of slots, CPU cores, storage and transfer: list, set, history, import.",
    list_prices,
)


@prices_app.command("history")
def history(ctx: typer.Context, json: AsJson = False) -> None:
    """List all prices with those that counted before."""
    with connected(ctx) as client:
        output.listing(client.costs.prices(history=True), json, _COLUMNS, _EMPTY)


@prices_app.command("set")
def set_price(  # noqa: PLR0913
    ctx: typer.Context,
    kind: Annotated[
        Literal["slot", "cpu", "storage", "transfer"],
        typer.Argument(help="A slot, a CPU core, kept bytes, or uploaded and read bytes."),
    ],
    usd: Annotated[
        str, typer.Argument(metavar="USD", help="US dollars an hour, a GB-month or a GB.")
    ],
    pool: Annotated[str, typer.Option("--pool", help="Only in this pool; default: any.")] = "",
    slot_type: Annotated[str, typer.Option("--slot-type", help="Only slots of this type.")] = "",
    spot: Annotated[
        bool | None, typer.Option("--spot/--no-spot", help="Only spot slots, or only others.")
    ] = None,
    store: Annotated[
        str,
        typer.Option("--store", help="Only this store: nodes, logs, or the begin of a URL."),
    ] = "",
    direction: Annotated[
        Literal["", "upload", "read"],
        typer.Option("--direction", help="Only uploads, or only reads; default: both."),
    ] = "",
    begin: Annotated[
        str | None,
        typer.Option("--from", help="A day or time (UTC), such as 2026-02-01; default: now."),
    ] = None,
) -> None:
    """Set a price from a time on. What is settled before keeps its price."""
    spot_text = {None: "", True: "yes", False: "no"}[spot]
    given = (kind, pool, slot_type, spot_text, store, direction, usd, begin or "")
    request = _request("phalanx prices set", dict(zip(_FIELDS, given, strict=True)))
    with connected(ctx) as client:
        new = client.costs.set_prices([request])
    output.note("the price is set" if new else "the price was set before; nothing changed")


@prices_app.command("import")
def import_prices(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Columns: see the description.")],
) -> None:
    """Set the prices of a CSV file, all or none; the same file again changes nothing.

    Its first line names the columns: kind (slot, cpu, storage or transfer), pool, slot_type, spot (yes
    or no), store, direction (upload or read), usd, valid_from. Only kind and usd are needed; an empty
    cell means any, or now.
    """
    session: Session = ctx.obj
    requests = _read(session.invocation.cwd / file)
    with connected(ctx) as client:
        new = client.costs.set_prices(requests)
    output.note(f"{len(new)} of {len(requests)} prices are new")


def _read(path: Path) -> list[PriceRequest]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is longer than {_MAX_BYTES} bytes")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    rows = csv.DictReader(text.splitlines())
    names = rows.fieldnames or ()
    if {"kind", "usd"} - set(names) or set(names) - set(_FIELDS):
        said = f"{path}, line 1: the columns are {', '.join(names) or 'none'}"
        raise UserError(said, f"write kind and usd, and what is needed of {', '.join(_FIELDS)}")
    found = [_request(f"{path}, line {rows.line_num}", row) for row in rows]
    if not found:
        raise UserError(f"{path} has no prices")
    return found


def _request(place: str, row: dict[str | None, Any] | dict[str, str]) -> PriceRequest:
    from pydantic import ValidationError

    from phalanx.schemas.api.cost_prices import PriceRequest

    if None in row or None in row.values():
        raise UserError(f"{place}: it has not as many cells as there are columns")
    cells: dict[str, str] = {name: "" for name in _FIELDS}
    cells |= {str(name): str(value).strip() for name, value in row.items()}
    if cells["spot"].lower() not in _SPOT:
        raise UserError(f"{place}: spot is {cells['spot']!r}", "write yes or no, or leave it empty")
    try:
        return PriceRequest(
            kind=cells["kind"],  # type: ignore[arg-type]
            pool=cells["pool"],
            slot_type=cells["slot_type"],
            spot=_SPOT[cells["spot"].lower()],
            store=cells["store"],
            direction=cells["direction"],  # type: ignore[arg-type]
            usd=Decimal(cells["usd"]),
            valid_from=_time(place, cells["valid_from"]),
        )
    except InvalidOperation:
        raise UserError(
            f"{place}: {cells['usd']!r} is no number", "write one such as 2.50"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{one}: " for one in first["loc"][:1])
        raise UserError(f"{place}: {where}{first['msg']}") from None


def _time(place: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{place}: {text!r} is no time", "write 2026-02-01 or 2026-02-01T06:00Z"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
