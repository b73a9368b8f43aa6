"""What kept and moved bytes cost: the part that is not settled yet is computed for each report."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.price_table import PriceTable
from phalanx.core.cost.storage import (
    StorageTotals,
    kept_totals,
    moved_totals,
    storage_added,
    totals_of_objects,
    windows,
)
from phalanx.store.cost import prices
from phalanx.store.cost.rows import CostFilter
from phalanx.store.database import Tx
from phalanx.store.storage import days, objects
from phalanx.store.storage.days import DayGroup


def accrued(tx: Tx, table: PriceTable, begin: int, end: int) -> dict[DayGroup, StorageTotals]:
    """What was kept and moved in a time, by day and group."""
    found: dict[DayGroup, StorageTotals] = {}

    def put(key: DayGroup, one: StorageTotals) -> None:
        found[key] = found.get(key, StorageTotals()).plus(one)

    for first, last in windows(table, begin, end):
        day, byte_us = first // DAY_US, dict[objects.Group, int]()
        for group, size in objects.kept_throughout(tx, first, last).items():
            byte_us[group] = size * (last - first)
        for group, one in objects.kept_in_part(tx, first, last):
            byte_us[group] = byte_us.get(group, 0) + one.byte_us(first, last)
        for group, amount in byte_us.items():
            put((day, group), kept_totals(table, group[2], amount, first))
        for group, one in objects.moved(tx, first, last):
            put((day, group), moved_totals(table, one))
    return found


def storage_by(
    tx: Tx, by: str, wanted: CostFilter, now: int, name: Callable[[str], str] = str
) -> dict[str, StorageTotals]:
    """Kept and moved bytes up to now by project, user, store or day; `name` is that of a group.

    What is kept at present is given with all groups but days.
    """
    if (wanted.pool, wanted.study, wanted.job) != (None, None, None):
        return {}
    index = {"project": 0, "user": 1, "store": 2}
    parts: dict[str, list[StorageTotals]] = {}
    for key, one in days.sums(tx, by, wanted).items():
        parts.setdefault(name(key), []).append(one)
    settled = objects.settled_to(tx) or objects.first_begin(tx) or now
    for (day, group), one in accrued(tx, prices.table(tx), settled, now).items():
        if days.takes(wanted, day, group):
            key = str(day) if by == "day" else group[index[by]]
            parts.setdefault(name(key), []).append(one)
    for group, size in objects.kept_bytes(tx).items() if by != "day" else ():
        if days.takes(wanted, None, group):
            parts.setdefault(name(group[index[by]]), []).append(StorageTotals(kept_bytes=size))
    return {key: storage_added(some) for key, some in parts.items()}


def storage_of_jobs(tx: Tx, nums: list[int], now: int) -> dict[int, StorageTotals]:
    """What each of some jobs keeps and has moved; jobs that have kept nothing are left out."""
    table = prices.table(tx)
    found = objects.of_jobs(tx, nums)
    return {job: totals_of_objects(some, table, now) for job, some in found.items()}
