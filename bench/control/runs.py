"""Queries over runs: one page of 100,000 runs with five parameters, two metrics and a tag each."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.control.throughput import database
from sqlalchemy import text

from phalanx.core.experiments.query import parse
from phalanx.store import open_store
from phalanx.store.database import Store, Tx
from phalanx.store.listings.jobs import JobFilter, Order, page
from phalanx.store.schema.experiments import run_params, run_terms
from phalanx.store.schema.listings import job_listing
from phalanx.store.schema.metrics import metric_last, metric_series

PAGE_MS = 200.0
NAMES = ("lr", "depth", "batch_size", "dropout", "seed")
METRICS = ("loss", "val_acc")
QUERIES = (
    ("", "-num"),
    ("metric:val_acc>0.9 param:lr<1e-3 tag:t3 state:succeeded", "-num"),
    ("metric:val_acc>0.9", "-num"),
    ("metric:val_acc>0.5", "-metric:val_acc"),
    ("", "-metric:val_acc"),
    ("param:lr<1e-3", "param:lr"),
    ("-tag:t3", "-num"),
    ("run-77", "-num"),
)
_BATCH, _ROUNDS = 5_000, 9
_DIALECTS = {"postgresql": ("ANALYZE",), "sqlite": ()}


def report(databases: tuple[str, ...], num_runs: int) -> bool:
    """Measure and print; whether every query is within its bar on every database."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
        ):
            store = open_store(url or Path(folder) / "db" / "x.sqlite")
            try:
                for first in range(1, num_runs, _BATCH):
                    store.transact(partial(_fill, first))
                for statement in _DIALECTS[name]:
                    store.transact(lambda tx, said=statement: tx.conn.execute(text(said)))
                kept &= all([_measured(store, name, *one) for one in QUERIES])
            finally:
                store.close()
    return kept


def _fill(first: int, tx: Tx) -> None:
    draw = random.Random(first)
    nums = range(first, first + _BATCH)
    facts = {"state": "succeeded", "owner": "ada"}
    tx.conn.execute(
        job_listing.insert(),
        [
            facts
            | {"num": num, "submitted_at": num, "project": f"p{num % 5}", "name": f"run-{num}"}
            for num in nums
        ],
    )
    params = {"source": "argument", "kind": "number", "counts": 1, "at": 1}
    values = [(num, name, draw.random()) for num in nums for name in NAMES]
    tx.conn.execute(
        run_params.insert(),
        [
            params | {"job": num, "name": name, "value": str(value), "number": value}
            for num, name, value in values
        ],
    )
    series = {"rank": 0, "stride": 1, "levels": 0, "first_step": 0, "last_step": 9, "count": 10}
    values = [(num, name, draw.random()) for num in nums for name in METRICS]
    tx.conn.execute(
        metric_series.insert(),
        [
            series
            | {"job": num, "name": name, "samples": b"", "min_value": 0.0, "max_value": value}
            for num, name, value in values
        ],
    )
    tx.conn.execute(
        metric_last.insert(),
        [
            {"job": num, "name": name, "rank": 0, "step": 9, "at": 1, "value": value}
            for num, name, value in values
        ],
    )
    tx.conn.execute(
        run_terms.insert(),
        [{"job": num, "kind": "tag", "value": f"t{num % 50}"} for num in nums],
    )


def _measured(store: Store, name: str, query: str, sort: str) -> bool:
    wanted = JobFilter(terms=parse(query, 1), projects=("p1", "p2"))
    order, taken = Order.parse(sort), []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        store.view(lambda tx: page(tx, wanted, order=order, limit=50))
        taken.append((time.perf_counter() - began) * 1e3)
    best, median = min(taken), statistics.median(taken)
    print(f"{name}: {query or 'all runs'}, by {sort}: best {best:.0f} ms, median {median:.0f} ms")
    return best <= PAGE_MS
