"""The table of newest values says the same as the points that arrived, and is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.contract.records import MetricPoint
from phalanx.core.curves.columns import columns_of
from phalanx.store import Store, migrate, open_store
from phalanx.store.database import engine_at
from phalanx.store.metrics import arrivals, folding, last_values
from phalanx.store.metrics.last_values import LastValue

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]
REPORTS = st.lists(
    st.lists(
        st.builds(
            MetricPoint,
            st.integers(0, 3),
            st.integers(0, 50),
            st.integers(0, 10**9),
            st.dictionaries(
                st.sampled_from(["loss", "acc", "step_time_seconds|b3"]),
                st.floats(-1e6, 1e6) | st.just(math.nan),
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    max_size=5,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = open_store(tmp_path / "db" / "x.sqlite")
    yield one
    one.close()


def add(store: Store, points: list[MetricPoint], job: int = 1) -> None:
    store.transact(lambda tx: arrivals.add_points(tx, (job, 1, 0), points))


def values(store: Store, job: int = 1) -> dict[str, tuple[int, int, float | None]]:
    found = store.view(lambda tx: last_values.of_job(tx, job))
    return {one.name: (one.rank, one.step, one.value) for one in found}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_it_has_the_newest_value_of_the_lowest_rank(store: Store, data: st.DataObject) -> None:
    job = data.draw(st.integers(1, 2**40))
    reports = data.draw(REPORTS)
    expected: dict[str, LastValue] = {}
    for report in reports:
        for rank, step, at, cells in report:
            for name, value in cells.items():
                known = expected.get(name)
                if "|" not in name and (known is None or rank <= known.rank):
                    shown = None if math.isnan(value) else value
                    expected[name] = LastValue(job, name, rank, step, at, shown)
    key = (job, 1, 0)
    together = [(key, columns_of(report)) for report in reports]
    if data.draw(st.booleans()):
        store.transact(lambda tx: arrivals.add_columns(tx, together))
    else:
        for report in reports:
            add(store, report, job)
    found = store.view(lambda tx: last_values.of_job(tx, job))
    assert {one.name: one for one in found} == expected
    store.transact(lambda tx: arrivals.drop_points(tx, [job], limit=99))
    assert store.view(lambda tx: last_values.of_job(tx, job)) == []


def test_a_job_with_many_names_gets_no_more_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_values, "MAX_NAMES", 2)
    add(store, [MetricPoint(0, 1, 1, {"a": 1.0, "b": 1.0})])
    add(store, [MetricPoint(0, 2, 2, {"a": 2.0, "c": 2.0})])
    assert values(store) == {"a": (0, 2, 2.0), "b": (0, 1, 1.0)}


def test_no_value_of_a_higher_rank_takes_its_place(store: Store) -> None:
    add(store, [MetricPoint(1, 5, 5, {"loss": 1.0})])
    add(store, [MetricPoint(0, 3, 6, {"loss": 2.0})])
    add(store, [MetricPoint(1, 9, 9, {"loss": 3.0})])
    assert values(store) == {"loss": (0, 3, 2.0)}


def test_earlier_databases_get_the_values_of_their_newest_chunks(tmp_path: Path) -> None:
    path = tmp_path / "db" / "x.sqlite"
    store = open_store(path)
    add(store, [MetricPoint(0, step, step, {"loss": step / 4}) for step in range(9)])
    add(store, [MetricPoint(0, 9, 9, {"loss": 0.125})], job=2)
    store.transact(lambda tx: folding.fold(tx, 1))
    add(store, [MetricPoint(0, 9, 9, {"loss": 0.5, "acc": math.nan})])
    expected = values(store), values(store, 2)
    store.close()
    engine = engine_at(f"sqlite:///{path}")
    with engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE metric_last")
        conn.exec_driver_sql("ALTER TABLE metric_series ADD COLUMN last_value FLOAT")
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '0047'")
        conn.exec_driver_sql("UPDATE metric_chunks SET data = x'00' WHERE job = 2")
    migrate.to_head(engine)
    engine.dispose()
    store = open_store(path)
    assert values(store) == expected[0]
    assert values(store, 2) == {}, "a damaged chunk is passed over"
    store.close()
