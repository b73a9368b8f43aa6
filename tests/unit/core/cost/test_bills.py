"""Bills: lines are divided exactly, and the comparison with the ledger has every amount once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.cost.bills import (
    BilledKey,
    BilledKind,
    BillLine,
    BillVerdict,
    LedgerAmount,
    billed_by_day,
    compared,
    divided,
    suggested_prices,
)
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.prices import GB, HOUR_US, MONTH_US, NANO

pytestmark = pytest.mark.unit
GPU = BilledKey(BilledKind.SLOT, "gpu", "h100")
POOL = BilledKey(BilledKind.SLOT, "gpu")
times = st.integers(0, 40 * DAY_US)
keys = st.sampled_from(
    [
        GPU,
        BilledKey(BilledKind.SLOT, "gpu", "a100"),
        POOL,
        BilledKey(BilledKind.SLOT),
        BilledKey(BilledKind.STORAGE, "s3://ckpt"),
        BilledKey(BilledKind.STORAGE, "s3://ckpt/vision"),
        BilledKey(BilledKind.TRANSFER, "s3://ckpt", "read"),
        BilledKey(BilledKind.TRANSFER, "s3://ckpt"),
        BilledKey(BilledKind.OTHER),
    ]
)


@st.composite
def bill_lines(draw: st.DrawFn) -> BillLine:
    begin, end = sorted([draw(times), draw(times)])
    key = draw(keys)
    nano = draw(st.integers(-(10**15), 10**15))
    id = str(draw(st.integers(0, 10**9)))
    return BillLine(id, begin, end, key.kind, key.place, key.slot_type, nano)


@given(bill_lines())
def test_the_parts_of_a_line_add_up_to_it(line: BillLine) -> None:
    parts = list(divided(line))
    assert sum(nano for _, nano in parts) == line.nano_usd
    days = [day for day, _ in parts]
    assert days == sorted(set(days))
    assert days[0] == line.from_at // DAY_US
    assert days[-1] == max(line.to_at - 1, line.from_at) // DAY_US


@settings(deadline=None)
@given(
    st.lists(bill_lines(), max_size=30),
    st.dictionaries(
        st.tuples(st.integers(0, 40), keys),
        st.builds(LedgerAmount, st.integers(0, 10**15), st.integers(0, 10**15)),
        max_size=30,
    ),
    st.randoms(),
    st.booleans(),
)
def test_sums_are_exact_whatever_the_order_of_lines(lines, ledger, draw, by_day) -> None:
    def rows_of(some: Iterable[BillLine]):
        billed = billed_by_day(some, 0, 40)
        return compared(billed, ledger, tolerance_percent=1, by_day=by_day)

    rows = rows_of(lines)
    assert sum(one.billed for one in rows) == sum(one.nano_usd for one in lines)
    assert sum(one.ledger.nano_usd for one in rows) == sum(one.nano_usd for one in ledger.values())
    shuffled = list(lines)
    draw.shuffle(shuffled)
    assert rows_of(shuffled) == rows
    assert len({(one.day, one.key) for one in rows}) == len(rows)
    suggested_prices(rows)


def test_lines_of_equal_times_may_be_added_before_they_are_divided() -> None:
    # The store adds lines up by their times: the days may differ by a rounding, the sums do not.
    parts = [BillLine("", 0, 3 * DAY_US, BilledKind.OTHER, "", "", nano) for nano in (1, 1, 1, -7)]
    whole = BillLine("", 0, 3 * DAY_US, BilledKind.OTHER, "", "", -4)
    assert sum(billed_by_day(parts, 0, 9).values()) == sum(billed_by_day([whole], 0, 9).values())


def verdict_of(billed: float, ledger: float, amount: int = HOUR_US, tolerance: float = 1) -> str:
    rows = compared(
        {(3, GPU): round(billed * NANO)},
        {(3, GPU): LedgerAmount(round(ledger * NANO), amount)},
        tolerance_percent=tolerance,
        by_day=True,
    )
    return rows[0].verdict.value


def test_amounts_within_the_tolerance_are_matched() -> None:
    assert verdict_of(100, 100) == verdict_of(101, 100) == verdict_of(0.01, 0) == "matched"
    assert (verdict_of(102, 100), verdict_of(98, 100)) == ("over", "under")
    assert verdict_of(102, 100, tolerance=2) == "matched"
    assert (verdict_of(5, 0), verdict_of(5, 0, amount=0)) == ("over", "unexplained")
    assert verdict_of(0, 5) == "under" and verdict_of(-5, 0, amount=0) == "unexplained"


def test_slot_types_are_compared_where_both_sides_know_them() -> None:
    ledger = {(1, GPU): LedgerAmount(70, 7), (2, GPU): LedgerAmount(70, 7)}
    rows = compared({(1, GPU): 70, (2, POOL): 70}, ledger, tolerance_percent=0, by_day=True)
    assert [(one.day, one.key) for one in rows] == [(1, GPU), (2, POOL)]
    assert {one.verdict for one in rows} == {BillVerdict.MATCHED}
    (whole,) = compared({(1, GPU): 70, (2, POOL): 70}, ledger, tolerance_percent=0, by_day=False)
    assert (whole.day, whole.key, whole.billed, whole.ledger.nano_usd) == (None, POOL, 140, 140)


def test_stores_are_compared_with_the_billed_store_above_them() -> None:
    bucket = BilledKey(BilledKind.STORAGE, "s3://ckpt")
    ledger = {
        (1, BilledKey(BilledKind.STORAGE, "s3://ckpt/vision")): LedgerAmount(30, 3),
        (1, BilledKey(BilledKind.STORAGE, "s3://ckpt")): LedgerAmount(10, 1),
        (1, BilledKey(BilledKind.STORAGE, "s3://ckpt2")): LedgerAmount(5, 1),
    }
    rows = compared({(1, bucket): 40}, ledger, tolerance_percent=0, by_day=True)
    found = {one.key.place: (one.billed, one.ledger.nano_usd) for one in rows}
    assert found == {"s3://ckpt": (40, 40), "s3://ckpt2": (0, 5)}
    vision = BilledKey(BilledKind.STORAGE, "s3://ckpt/vision")
    rows = compared({(1, bucket): 10, (1, vision): 30}, ledger, tolerance_percent=0, by_day=True)
    found = {one.key.place: (one.billed, one.ledger.nano_usd) for one in rows}
    assert found["s3://ckpt"] == (10, 10) and found["s3://ckpt/vision"] == (30, 30)


def test_prices_are_suggested_of_what_differs() -> None:
    storage = BilledKey(BilledKind.STORAGE, "s3://a")
    read = BilledKey(BilledKind.TRANSFER, "s3://a", "read")
    ledger = {
        (1, GPU): LedgerAmount(20 * NANO, 10 * HOUR_US),
        (1, storage): LedgerAmount(0, 50 * GB * MONTH_US),
        (1, read): LedgerAmount(9 * NANO, 100 * GB),
    }
    billed = {(1, GPU): 25 * NANO, (1, storage): NANO, (1, read): 9 * NANO}
    rows = compared(billed, ledger, tolerance_percent=1, by_day=False)
    found = {one.key: one.nano_usd for one in suggested_prices(rows)}
    assert found == {GPU: 2_500_000_000, storage: 20_000_000}
    # With a price of CPU cores, the part of the slots is not known.
    assert [one.key for one in suggested_prices(rows, frozenset({"gpu"}))] == [storage]
