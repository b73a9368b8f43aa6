"""Set and list prices. A price begins behind all that is settled, so no closed period ever changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.core.cost.price_table import Price, PriceKey, PriceKind
from phalanx.core.cost.prices import NANO
from phalanx.core.cost.totals import usd_of
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.cost_prices import UNITS, PriceRequest, PriceView
from phalanx.services.platform import Platform
from phalanx.store.cost import prices
from phalanx.store.cost.budgets import BUDGETS
from phalanx.store.cost.prices import StoredPrice
from phalanx.store.database import Tx
from phalanx.store.storage import objects
from phalanx.store.tenancy import audit

_OF_SLOTS = (PriceKind.SLOT.value, PriceKind.CPU.value)


def set_prices(
    platform: Platform, wanted: Sequence[PriceRequest], now: int, *, actor: str
) -> list[PriceView]:
    """Store prices, all or none; those that are known already change nothing. Returns the new ones.

    Raises UserError for a price that begins before the end of what is settled, and for too many.
    """

    def work(tx: Tx) -> list[Price]:
        ends = {False: objects.lock(tx) or None, True: prices.lock_settlements(tx)}
        known = {(one.price.key, one.price.valid_from): one.price for one in prices.every(tx)}
        new: dict[tuple[PriceKey, int], Price] = {}
        for request in wanted:
            settled = ends[request.kind in _OF_SLOTS]
            one = _price(request, max(now, settled or 0))
            place = (one.key, one.valid_from)
            if known.get(place) == one:
                continue
            if new.get(place, one) != one:
                raise UserError(f"{label_of(one.key)}: two prices begin at {at_of(one.valid_from)}")
            if settled is not None and one.valid_from < settled:
                raise UserError(
                    f"{label_of(one.key)}: a price cannot begin at {at_of(one.valid_from)}: what was "
                    f"used up to {at_of(settled)} is settled, and settled costs never change",
                    "give a later time, or none: it then begins now",
                )
            before = known.get(place)
            audit.describe(
                tx,
                f"price of {label_of(one.key)} from {at_of(one.valid_from)}",
                None if before is None else str(usd_of(before.nano_usd)),
                str(usd_of(one.nano_usd)),
            )
            new[place] = one
        if len({*known, *new}) > prices.MOST:
            raise UserError(f"a platform has {prices.MOST} prices with their history at most")
        prices.put(tx, list(new.values()), now, actor)
        if new:
            tx.touched.topics.add(BUDGETS)
        return list(new.values())

    return [_view(StoredPrice(one, now, actor)) for one in platform.store.transact(work)]


def list_prices(platform: Platform, now: int, *, history: bool) -> list[PriceView]:
    """The prices that count now and those that begin later; `history`: the earlier ones as well."""
    found = platform.store.view(prices.every)
    return [_view(one) for one in (found if history else _present(found, now))]


def _present(found: Iterable[StoredPrice], now: int) -> list[StoredPrice]:
    kept: dict[tuple[PriceKey, int], StoredPrice] = {}
    for one in found:
        begins = one.price.valid_from
        kept[one.price.key, begins if begins > now else 0] = one
    return list(kept.values())


def _price(request: PriceRequest, earliest: int) -> Price:
    kind = PriceKind(request.kind)
    if kind is PriceKind.CPU and (request.slot_type or request.spot is not None):
        raise UserError("a price of CPU cores names a pool only", "leave slot_type and spot out")
    if kind in (PriceKind.STORAGE, PriceKind.TRANSFER):
        if request.pool or request.slot_type or request.spot is not None:
            raise UserError(f"a price of {kind} names a store only", "write store instead of pool")
        key = PriceKey(kind, request.store, request.direction)
    else:
        key = PriceKey(kind, request.pool, request.slot_type, request.spot)
    if (request.store and key.pool != request.store) or key.slot_type != (
        request.direction or request.slot_type
    ):
        raise UserError(f"a price of {kind} names no store", "write pool instead")
    at = earliest
    if request.valid_from is not None:
        at = round(request.valid_from.timestamp() * 1_000_000)
    return Price(key, at, int(request.usd * NANO))


def label_of(key: PriceKey) -> str:
    """What a price is for, such as `slot of pool gpu, type h100, spot`."""
    if key.kind in (PriceKind.STORAGE, PriceKind.TRANSFER):
        direction = f", {key.slot_type}" if key.slot_type else ""
        return f"{key.kind} of {f'store {key.pool}' if key.pool else 'any store'}{direction}"
    parts = [
        f"pool {key.pool}" if key.pool else "any pool",
        f"type {key.slot_type}" if key.slot_type else "",
        "" if key.spot is None else ("spot" if key.spot else "not spot"),
    ]
    return f"{key.kind} of {', '.join(one for one in parts if one)}"


def _view(one: StoredPrice) -> PriceView:
    price, key = one.price, one.price.key
    stored = key.kind in (PriceKind.STORAGE, PriceKind.TRANSFER)
    return PriceView(
        kind=key.kind.value,
        pool="" if stored else key.pool,
        slot_type="" if stored else key.slot_type,
        store=key.pool if stored else "",
        direction=key.slot_type if stored else "",
        spot=key.spot,
        usd=usd_of(price.nano_usd),
        unit=UNITS[key.kind.value],
        valid_from=at_of(price.valid_from),
        set_at=at_of(one.set_at),
        set_by=one.set_by,
    )
