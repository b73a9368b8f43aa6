"""Folding changes what is read from, never what is read: curves, live views and names stay the same."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text

from phalanx.core.contract.records import MetricPoint
from phalanx.core.curves import rollups
from phalanx.store import Store, Tx, migrate, open_store
from phalanx.store.database import engine_at
from phalanx.store.metrics import arrivals, folding, series
from phalanx.store.metrics.curves import CurveQuery, curves
from phalanx.store.schema.listings import job_listing
from phalanx.store.schema.metric_points import convert, convert_page
from phalanx.store.schema.metric_summaries import BEGIN, Place, summarize_page
from phalanx.store.schema.metrics import metric_chunks, metric_series

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]
KEY = (1, 1, 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = open_store(tmp_path / "db" / "x.sqlite")
    yield one
    one.close()


def add(store: Store, points: list[MetricPoint], generation: int = 0, job: int = 1) -> None:
    store.transact(lambda tx: arrivals.add_points(tx, (job, 1, generation), points))


def fold(store: Store, job: int = 1) -> None:
    while store.transact(lambda tx: folding.fold(tx, job)):
        pass


def curve(store: Store, **wanted: object) -> dict[tuple[str, int], list[tuple[int, str]]]:
    query = CurveQuery(**{"max_points": 100_000, "exact_up_to": 10**9, **wanted})  # type: ignore[arg-type]
    found = store.view(lambda tx: curves(tx, [1], query))
    return {
        (one.name, one.rank): [
            (step, repr(value))
            for step, value in zip(
                one.samples.steps.tolist(), one.samples.values.tolist(), strict=True
            )
        ]
        for one in found
    }


VALUES = st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf)
REPORTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # generation
        st.lists(
            st.tuples(
                st.integers(0, 1),
                st.integers(0, 80),
                st.dictionaries(st.sampled_from(["loss", "acc"]), VALUES, min_size=1),
            ),
            min_size=1,
            max_size=30,
        ),
        st.booleans(),  # fold behind it
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(REPORTS)
def test_curves_are_those_of_the_newest_values_whatever_is_folded(
    tmp_path_factory: pytest.TempPathFactory,
    reports: list[tuple[int, list[tuple[int, int, dict[str, float]]], bool]],
) -> None:
    """With tiny roll-ups: short series of 16 samples, 4 intervals a page, of 2, 4, 8, … steps."""
    store = open_store(tmp_path_factory.mktemp("s") / "db" / "x.sqlite")
    newest: dict[tuple[str, int], dict[int, float]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SHORT", 16), ("PAGE", 4), ("FACTOR", 2)):
            patch.setattr(rollups, name, value)
        patch.setattr(series, "PAGE", 4)
        try:
            for number, (generation, rows, now) in enumerate(reports):
                points = [MetricPoint(rank, step, number, cells) for rank, step, cells in rows]
                add(store, points, generation)
                for point in points:
                    for name, value in point.values.items():
                        newest.setdefault((name, point.rank), {})[point.step] = value
                if now:
                    store.transact(lambda tx: folding.fold(tx, 1))
            exact = {key: sorted(one.items()) for key, one in newest.items()}
            assert curve(store) == {
                key: [(step, repr(value)) for step, value in one] for key, one in exact.items()
            }
            part = {key: [one for one in rows if 20 <= one[0] <= 40] for key, rows in exact.items()}
            assert curve(store, first=20, last=40) == {
                key: [(step, repr(value)) for step, value in one]
                for key, one in part.items()
                if one
            }
            _check_roll_ups(store, exact)
            fold(store)
            _check_roll_ups(store, exact)
        finally:
            store.close()


def _check_roll_ups(store: Store, exact: dict[tuple[str, int], list[tuple[int, float]]]) -> None:
    """Few points asked for: ends and extremes are those of all samples, and so is the count."""
    query = CurveQuery(max_points=6)
    for one in store.view(lambda tx: curves(tx, [1], query)):
        rows = exact[one.name, one.rank]
        steps, values = one.samples.steps.tolist(), one.samples.values.tolist()
        assert one.count == len(rows) and len(steps) <= 6
        assert one.downsampled == (len(steps) < len(rows))
        assert (steps[0], steps[-1]) == (rows[0][0], rows[-1][0])
        known = dict(rows)
        assert all(repr(known[s]) == repr(v) for s, v in zip(steps, values, strict=True))
        heights = [v if math.isfinite(v) else math.inf for _, v in rows]
        shown = [v if math.isfinite(v) else math.inf for v in values]
        assert (min(shown), max(shown)) == (min(heights), max(heights))


def test_a_long_series_has_levels_and_reads_few_pages(store: Store) -> None:
    num = 100_000
    for start in range(0, num, 5000):
        points = [MetricPoint(0, step, step, {"x": 1.0}) for step in range(start, start + 5000)]
        add(store, points)
    fold(store)
    (row,) = store.view(lambda tx: series.find(tx, [1]))
    assert (row.count, row.levels, row.samples, row.stride) == (num, 2, None, 1)
    pages = []
    real = series.unpack_intervals
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "unpack_intervals", lambda data: pages.append(1) or real(data))
        (one,) = store.view(lambda tx: curves(tx, [1], CurveQuery(max_points=100)))
    assert one.count == num and one.downsampled and len(pages) == 1


def test_small_chunks_become_large_ones_and_live_views_see_each_report_once(store: Store) -> None:
    def page(after: int, limit: int = 7) -> tuple[list[arrivals.MetricChunk], bool]:
        return store.view(lambda tx: arrivals.chunks_after(tx, after, limit=limit))

    for number in range(100):
        add(store, [MetricPoint(0, number, number, {"x": 1.0})], job=1 + number % 2)
    seen, more = page(0)
    after = seen[-1].id
    for job in (1, 2):
        fold(store, job)
        add(store, [MetricPoint(0, 1000, 1, {"x": 2.0})], job=job)
    assert (
        store.view(lambda tx: tx.conn.execute(select(func.count(metric_chunks.c.id))).scalar()) == 4
    )
    while more:
        found, more = page(after, limit=1)
        seen += found
        after = seen[-1].id
    assert [one.id for one in seen] == list(range(1, 103))
    assert [one.points[0].step for one in seen] == [*range(100), 1000, 1000]
    last = store.view(lambda tx: arrivals.last_chunks(tx, 1, num_chunks=3))
    assert [one.points[0].step for one in last] == [96, 98, 1000]
    mine, _ = store.view(lambda tx: arrivals.chunks_of(tx, 2, after=50, limit=1000))
    assert [one.id for one in mine] == [*range(52, 101, 2), 102]


def test_generations_are_not_joined(store: Store) -> None:
    for generation in (0, 1):
        add(store, [MetricPoint(0, 1, 1, {"x": float(generation)})], generation)
    fold(store)
    last = store.view(lambda tx: arrivals.last_chunks(tx, 1))
    assert [one.generation for one in last] == [0, 1]
    assert curve(store) == {("x", 0): [(1, "1.0")]}


def test_what_is_due(store: Store) -> None:
    add(store, [MetricPoint(0, 1, 1_000_000, {"x": 1.0})], job=1)
    for step in range(arrivals.FULL):
        add(store, [MetricPoint(0, step, 1_000_000, {"x": 1.0})], job=2)
    points = [MetricPoint(0, step, 1_000_000, {"x": 1.0}) for step in range(arrivals.FULL_ROWS)]
    add(store, points, job=3)

    def due(now: int) -> list[int]:
        return store.view(lambda tx: arrivals.due(tx, now, limit=9))

    assert due(1_000_000 + arrivals.IDLE_US) == [2, 3]
    assert due(1_000_001 + arrivals.IDLE_US) == [1, 2, 3]
    fold(store, 2)
    assert due(1_000_000) == [3]


def test_deleting_takes_roll_ups_and_names(store: Store) -> None:
    add(store, [MetricPoint(0, step, 1, {"x": 1.0}) for step in range(3000)])
    fold(store)
    assert store.transact(lambda tx: arrivals.drop_points(tx, [1], limit=9)) == 1
    assert store.view(lambda tx: series.find(tx, [1])) == []
    assert store.view(lambda tx: arrivals.names_of(tx, 1)) == [] and curve(store) == {}


def test_the_least_and_most_value_are_those_of_finite_samples(store: Store) -> None:
    def known() -> dict[str, tuple[float | None, ...]]:
        rows = store.view(lambda tx: series.find(tx, [1], ranks=[0]))
        return {one.name: (one.min_value, one.max_value) for one in rows}

    first = [MetricPoint(0, step, 1, {"x": float(step), "y": math.nan}) for step in range(3000)]
    add(store, [*first, MetricPoint(0, 9000, 1, {"x": math.inf, "z": -1.0})])
    fold(store)
    expected = {"x": (0.0, 2999.0), "y": (None, None), "z": (-1.0, -1.0)}
    assert known() == expected
    add(store, [MetricPoint(0, 100, 1, {"x": -5.0, "z": 3.0})], 1)
    fold(store)
    expected |= {"x": (-5.0, 2999.0), "z": (-1.0, 3.0)}
    assert known() == expected
    # The migration of a database that has none gives the same, but for what was replaced.
    empty = {"min_value": None, "max_value": None}
    store.transact(lambda tx: tx.conn.execute(metric_series.update().values(**empty)))

    def migrated(tx: Tx) -> None:
        place: Place | None = BEGIN
        while place is not None:
            place = summarize_page(tx.conn, place, limit=1)

    store.transact(migrated)
    assert known() == expected


def test_a_job_that_has_ended_is_due_at_once(store: Store) -> None:
    add(store, [MetricPoint(0, 1, 1_000_000, {"x": 1.0})], job=1)
    row = {"num": 1, "submitted_at": 0, "ended_at": None}
    store.transact(lambda tx: tx.conn.execute(job_listing.insert(), row))
    assert store.view(lambda tx: arrivals.due(tx, 1_000_000, limit=9)) == []
    store.transact(lambda tx: tx.conn.execute(job_listing.update().values(ended_at=2)))
    assert store.view(lambda tx: arrivals.due(tx, 1_000_000, limit=9)) == [1]


# -- databases of earlier releases -----------------------------------------------------------------


def old_database(tmp_path: Path, num: int) -> Path:
    """A database of revision 0040 with lists of points in JSON."""
    path = tmp_path / "db" / "x.sqlite"
    path.parent.mkdir(parents=True)
    engine = engine_at(f"sqlite:///{path}")
    migrate.upgrade(engine, None, "0040")
    engine.dispose()
    with sqlite3.connect(path) as conn:
        for number in range(1, num + 1):
            cells = {"loss": 1 / number, "bad": "nan"}
            points = json.dumps([[0, number, 10 * number, cells], [1, number, 10 * number, cells]])
            row = (number, 1, 1, 0, 0, number, number, points, 0, 1)
            conn.execute(
                "INSERT INTO metric_chunks (id, job, attempt, generation, node_rank, first_step,"
                " last_step, points, first_rank, last_rank) VALUES (?,?,?,?,?,?,?,?,?,?)",
                row,
            )
    conn.close()
    return path


def check_converted(path: Path, num: int) -> None:
    store = open_store(path)
    try:
        found, _ = store.view(lambda tx: arrivals.chunks_after(tx, 0, limit=num + 1))
        assert [one.id for one in found] == list(range(1, num + 1))
        for number, one in enumerate(found, start=1):
            assert [(p.rank, p.step, p.at) for p in one.points] == [
                (rank, number, 10 * number) for rank in (0, 1)
            ]
            assert one.points[0].values["loss"] == 1 / number
            assert math.isnan(one.points[0].values["bad"])
        fold(store)
        assert curve(store)["loss", 1] == [(n, repr(1 / n)) for n in range(1, num + 1)]
        assert "metric_points" not in store.view(_tables)
    finally:
        store.close()


def _tables(tx: Tx) -> set[str]:
    return set(tx.conn.execute(text("SELECT name FROM sqlite_master")).scalars())


def test_metrics_of_an_earlier_release_become_chunks(tmp_path: Path) -> None:
    path = old_database(tmp_path, 450)
    check_converted(path, 450)


def test_a_conversion_that_was_killed_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_database(tmp_path, 450)
    calls = []

    def killed(conn: object, *more: object) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return convert_page(conn)  # type: ignore[arg-type]

    monkeypatch.setattr("phalanx.store.schema.metric_points.convert_page", killed)
    with pytest.raises(KeyboardInterrupt):
        open_store(path)
    monkeypatch.undo()
    with sqlite3.connect(path) as conn:
        (left,) = conn.execute("SELECT count(*) FROM metric_points").fetchone()
        (revision,) = conn.execute("SELECT version_num FROM alembic_version").fetchone()
    conn.close()
    assert (left, revision) == (250, "0041")
    check_converted(path, 450)


def test_the_progress_of_a_conversion_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = old_database(tmp_path, 3)
    engine = engine_at(f"sqlite:///{path}")
    migrate.upgrade(engine, "0040", "0041")
    with caplog.at_level("INFO"):
        convert(engine)
    engine.dispose()
    assert "all 3 rows are converted" in caplog.text
