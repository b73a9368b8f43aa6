"""The metric store: values a second into it, durable and with roll-ups, and the curves of 500 jobs at once.

A report has 200 steps of five metrics of one rank, and 100 reports are one commit. Values are single
precision, as torch computes them. The curves are 500 jobs of 10,000 steps, read as 1,000 points each from a
database that is filled and folded.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from bench.control.throughput import database

from phalanx.core.contract.records import MetricPoint
from phalanx.schemas.wire.supervision import MetricsReport
from phalanx.services.queries.metrics import curves_json
from phalanx.store import open_store
from phalanx.store.database import Store, Tx
from phalanx.store.metrics import arrivals, folding
from phalanx.store.metrics.curves import CurveQuery, curves

STORED_PER_S = 1e6
READ_MS = 100.0
_STEPS, _REPORTS, _METRICS = 200, 100, 5
_ROUNDS = 15


def report(databases: tuple[str, ...], num_jobs: int, num_commits: int) -> bool:
    """Measure and print; whether storing and reading are within their bars on every database."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
        ):
            store = open_store(url or Path(folder) / "db" / "x.sqlite")
            try:
                kept &= _stored(store, name, num_commits)
                kept &= _read(store, name, num_jobs)
            finally:
                store.close()
    return kept


def report_points(first: int, names: tuple[str, ...], steps: int = 200) -> list[MetricPoint]:
    """One report: some steps from `first` on."""
    values = np.random.default_rng(first).standard_normal((steps, len(names))).astype(np.float32)
    at = 1_795_000_000_000_000 + first * 50_000
    return [
        MetricPoint(
            0,
            first + row,
            at + row * 50_000 + random.randrange(2000),
            dict(zip(names, cells, strict=True)),
        )
        for row, cells in enumerate(values.tolist())
    ]


def _stored(store: Store, name: str, num_commits: int) -> bool:
    """Commits of 100 reports, one for each of 100 jobs; then the roll-ups of all of them."""
    names = tuple(f"metric_{number}" for number in range(_METRICS))
    reports = [report_points(_STEPS * commit, names) for commit in range(num_commits)]
    values = _STEPS * _REPORTS * _METRICS

    def commit(points: list[MetricPoint], tx: Tx) -> None:
        for job in range(_REPORTS):
            arrivals.add_points(tx, (10_000 + job, 1, 0), points)

    began_s = time.process_time()
    took = [_took(partial(store.transact, partial(commit, points))) for points in reports]
    used_s = (time.process_time() - began_s) / num_commits
    rate = values / min(took)
    fold_s = _took(lambda: _fold(store, range(10_000, 10_000 + _REPORTS)))
    folded = num_commits * values / (sum(took) + fold_s)
    print(
        f"{name}: {rate / 1e6:.2f} M values/s durable in the best commit, "
        f"{values / statistics.median(took) / 1e6:.2f} in the median one, "
        f"{values / used_s / 1e6:.2f} for each second of the processor; "
        f"{folded / 1e6:.2f} M values/s with roll-ups and joined chunks behind it"
    )
    text = MetricsReport(seq=1, generation=0, points=reports[0]).model_dump_json()
    read_s = _took(lambda: MetricsReport.model_validate_json(text))
    per_report = read_s + statistics.median(took) / _REPORTS
    print(
        f"{name}: {_STEPS * _METRICS / per_report / 1e6:.2f} M values/s with the JSON of reports read first"
    )
    return rate >= STORED_PER_S


def _read(store: Store, name: str, num_jobs: int) -> bool:
    nums = list(range(1, num_jobs + 1))
    for first in range(0, 10_000, _STEPS):
        points = report_points(first, ("loss",))

        def add(tx: Tx, points: list[MetricPoint] = points) -> None:
            for num in nums:
                arrivals.add_points(tx, (num, 1, 0), points)

        store.transact(add)
    _fold(store, nums)
    query = CurveQuery(("loss",), (0,))
    found = store.view(lambda tx: curves(tx, nums, query))
    assert len(found) == num_jobs and all(one.count == 10_000 for one in found)
    times = sorted(
        1000 * _took(lambda: store.view(lambda tx: curves(tx, nums, query))) for _ in range(_ROUNDS)
    )
    write_ms = 1000 * min(_took(lambda: curves_json(found)) for _ in range(5))
    points_each = len(found[0].samples)
    print(
        f"{name}: {num_jobs} curves of 10,000 steps as {points_each} points each: {times[0]:.0f} ms best, "
        f"{statistics.median(times):.0f} ms median; written as JSON {write_ms:.0f} ms more"
    )
    return times[0] <= READ_MS


def _fold(store: Store, nums: Iterator[int] | range | list[int]) -> None:
    for num in nums:
        while store.transact(partial(folding.fold, job=num)):
            pass


def _took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
