"""Which price counts for what is held, and from when on."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.cost.price_table import Held, Price, PriceKey, PriceKind, PriceTable
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.core.gang.placement import SlotOffer

pytestmark = pytest.mark.unit

SLOT, CPU = PriceKind.SLOT, PriceKind.CPU
TWO = Held("gpu", (SlotOffer(2, "h100", True, "1.5"),), 8)


def at(usd: float, key: PriceKey, begin: int = 0) -> Price:
    return Price(key, begin, round(usd * NANO))


def test_the_price_that_names_most_counts_and_the_pool_file_where_there_is_none() -> None:
    prices = [
        at(9, PriceKey(SLOT)),
        at(8, PriceKey(SLOT, spot=True)),
        at(7, PriceKey(SLOT, slot_type="h100")),
        at(6, PriceKey(SLOT, "gpu")),
        at(5, PriceKey(SLOT, "gpu", "h100")),
        at(4, PriceKey(SLOT, "gpu", "h100", True)),
        at(1, PriceKey(SLOT, "gpu", "h100", False)),
        at(1, PriceKey(SLOT, "other", "h100", True)),
    ]
    for known in range(6):
        assert PriceTable(prices[: known + 1]).nano_per_hour(TWO, 0) == 2 * (9 - known) * NANO
    assert PriceTable(prices).nano_per_hour(TWO, 0) == 8 * NANO
    assert PriceTable().nano_per_hour(TWO, 0) == 3 * NANO
    cores = at(0.25, PriceKey(CPU, "gpu"))
    assert PriceTable([cores]).nano_per_hour(TWO, 0) == 5 * NANO


def test_what_is_held_over_a_change_costs_the_price_of_each_part() -> None:
    table = PriceTable(
        [
            at(1, PriceKey(SLOT, "gpu"), HOUR_US),
            at(2, PriceKey(SLOT, "gpu"), 3 * HOUR_US),
            at(0, PriceKey(SLOT, "gpu"), 4 * HOUR_US),
        ]
    )
    # An hour at the pool file's 1.5, two at 1, one at 2, one for nothing.
    assert table.nano_usd(TWO, 0, 5 * HOUR_US) == 2 * round(5.5 * NANO)
    assert table.nano_usd(TWO, 3 * HOUR_US, 4 * HOUR_US) == 4 * NANO
    assert table.nano_usd(TWO, 3 * HOUR_US, 3 * HOUR_US) == 0


spots = st.none() | st.booleans()
keys = st.builds(
    PriceKey,
    st.sampled_from(PriceKind),
    st.sampled_from(["", "gpu", "cpu"]),
    st.sampled_from(["", "h100"]),
    spots,
)
offers = st.builds(
    SlotOffer, st.integers(1, 8), st.sampled_from(["h100", "a100"]), st.booleans(), st.just("0.3")
)
held = st.builds(
    Held, st.sampled_from(["gpu", "cpu"]), st.tuples(offers, offers), st.integers(0, 9)
)
attempts = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 5_000), held), max_size=8)
changes = st.lists(st.tuples(st.integers(0, 20_000), keys, st.integers(0, 5 * NANO)), max_size=8)


@given(attempts, changes)
def test_what_was_settled_is_what_the_whole_table_says_at_the_end(
    ended: list[tuple[int, int, Held]], later: list[tuple[int, PriceKey, int]]
) -> None:
    """Prices begin behind all that is settled, as `services.cost.prices` demands."""
    known: list[Price] = []
    settled: list[tuple[Held, int, int, int]] = []
    log = [(begin + lasted, (begin, one)) for begin, lasted, one in ended]
    log += [(moment, (key, nano)) for moment, key, nano in later]  # type: ignore[misc]
    for moment, what in sorted(log, key=lambda entry: entry[0]):
        if isinstance(what[0], PriceKey):
            known.append(Price(what[0], moment, what[1]))  # type: ignore[arg-type]
        else:
            nano = PriceTable(known).nano_usd(what[1], what[0], moment)  # type: ignore[arg-type]
            settled.append((what[1], what[0], moment, nano))  # type: ignore[arg-type]
    rebuilt = PriceTable(known)
    for one, begin, end, nano in settled:
        assert rebuilt.nano_usd(one, begin, end) == nano


def test_a_store_is_found_by_the_begin_of_its_url_and_the_longest_one_counts() -> None:
    key = partial(PriceKey, PriceKind.STORAGE)
    known = {"": 1, "s3://a": 20, "s3://a/b": 300, "nodes": 4}
    table = PriceTable(Price(key(name), 0, nano) for name, nano in known.items())
    asked = ["s3://a", "s3://a/b/c", "s3://a/bc", "s3://ab", "nodes", "logs"]
    assert [table.find(key(one), 0) for one in asked] == [20, 300, 20, 1, 4, 1]


def test_storage_is_priced_by_gigabyte_and_30_days_and_transfer_by_direction() -> None:
    table = PriceTable(
        [
            Price(PriceKey(PriceKind.STORAGE, "s3://a"), 0, 23_000_000),
            Price(PriceKey(PriceKind.TRANSFER, "s3://a", "read"), 0, 90_000_000),
        ]
    )
    month = 30 * 86_400 * 1_000_000
    assert table.storage_nano("s3://a", 10 * 10**9 * month, 0) == 230_000_000
    assert table.storage_nano("nodes", 10**9 * month, 0) == 0
    assert table.transfer_nano("s3://a/b", "read", 2 * 10**9, 0) == 180_000_000
    assert table.transfer_nano("s3://a/b", "upload", 2 * 10**9, 0) == 0
