"""Byte-time over random lives of stored objects: every division of a time adds up to the whole, exactly."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.price_table import Price, PriceKey, PriceKind, PriceTable
from phalanx.core.cost.storage import ObjectKind, StoredObject, storage_added, windows
from phalanx.services.ledger.storage import accrued
from phalanx.store import open_store
from phalanx.store.cost.rows import CostFilter
from phalanx.store.database import Store, Tx
from phalanx.store.schema.storage import storage_days, stored_objects
from phalanx.store.storage import days

pytestmark = pytest.mark.unit
START = 20_000 * DAY_US + 17
END = START + 3 * DAY_US
moments = st.integers(START, END)
PETABYTE = 10**15


@st.composite
def objects(draw: st.DrawFn) -> StoredObject:
    begin = draw(moments)
    end = draw(st.none() | st.integers(begin, END + DAY_US))
    kind = draw(st.sampled_from([ObjectKind.NEAR, ObjectKind.REMOTE, ObjectKind.READ]))
    store = draw(st.sampled_from(["nodes", "s3://a", "s3://a/b"]))
    return StoredObject(store, kind, draw(st.integers(0, PETABYTE)), begin, end)


prices = st.lists(st.tuples(moments, st.integers(0, 10**12)), max_size=4)


def table_of(found: list[tuple[int, int]]) -> PriceTable:
    return PriceTable(Price(PriceKey(PriceKind.STORAGE), at, nano) for at, nano in found)


@given(objects(), prices)
def test_windows_are_a_partition_with_one_day_and_one_price_each(
    one: StoredObject, found: list[tuple[int, int]]
) -> None:
    table = table_of(found)
    parts = windows(table, START, END)
    assert parts[0][0] == START and parts[-1][1] == END
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(parts))
    assert all(begin // DAY_US == (end - 1) // DAY_US for begin, end in parts)
    assert all(not table.borders(begin, end) for begin, end in parts)
    assert sum(one.byte_us(*part) for part in parts) == one.byte_us(START, END)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(Path(tmp_path_factory.mktemp("storage"), "a.sqlite"))


@settings(max_examples=60, deadline=None)
@given(st.lists(objects(), max_size=12), prices, st.lists(moments, max_size=4))
def test_steps_at_any_times_settle_the_byte_time_of_all_objects(
    store: Store, found: list[StoredObject], known: list[tuple[int, int]], stops: list[int]
) -> None:
    table = table_of(known)

    def work(tx: Tx) -> None:
        tx.conn.execute(stored_objects.delete())
        tx.conn.execute(storage_days.delete())
        rows = [
            {
                **{"id": number, "job": number, "project": "p", "owner": f"u{number % 2}"},
                **{"store": one.store, "kind": one.kind.value, "path": str(number)},
                **{"size_bytes": one.size_bytes, "from_at": one.from_at, "to_at": one.to_at},
            }
            for number, one in enumerate(found, 1)
        ]
        if rows:
            tx.conn.execute(stored_objects.insert(), rows)
        times = sorted({START, *stops, END})
        for begin, end in itertools.pairwise(times):
            days.add(tx, accrued(tx, table, begin, end))
        whole = storage_added(days.sums(tx, "project", CostFilter()).values())
        assert whole.byte_us == sum(one.byte_us(START, END) for one in found)
        moving = [one for one in found if one.from_at < END]
        sizes = {kind: 0 for kind in ObjectKind}
        for one in moving:
            sizes[one.kind] += one.size_bytes
        assert whole.uploaded_bytes == sizes[ObjectKind.REMOTE]
        assert whole.read_bytes == sizes[ObjectKind.READ]
        for by in ("user", "store", "day"):  # every division has the same sums, money included
            assert storage_added(days.sums(tx, by, CostFilter()).values()) == whole
        dates = days.sums(tx, "day", CostFilter())
        for day, one in dates.items():
            begin = max(int(day) * DAY_US, START)
            end = min((int(day) + 1) * DAY_US, END)
            assert one.byte_us == sum(thing.byte_us(begin, end) for thing in found)

    store.transact(work)
