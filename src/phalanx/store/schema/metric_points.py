"""Move the metrics of earlier releases, lists of points in JSON, into chunks of columns.

Each page is one transaction that writes the new rows and deletes the old ones: after a kill the next start
continues with what is left. A row keeps its number, so that the places of live views stay valid.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from sqlalchemy import Connection, Engine, text

from phalanx.core.contract.records import MetricPoint
from phalanx.store.schema.metrics import chunk_row, metric_chunks

PAGE = 200
_EVERY = 50  # pages between two lines of the log
_LOG = logging.getLogger(__name__)
_READ = text(
    "SELECT id, job, attempt, generation, points FROM metric_points ORDER BY id LIMIT :limit"
)
_DROP = text("DELETE FROM metric_points WHERE id <= :last")
_COUNT = text("SELECT count(*) FROM metric_points")


def _numbers(cells: dict[str, float | str]) -> dict[str, float]:
    """JSON has no NaN and no infinity: they were stored as text."""
    return {name: float(value) for name, value in cells.items()}


def convert(engine: Engine) -> None:
    """Move all rows, a page in each transaction, and log the progress."""
    with engine.connect() as conn:
        total = int(conn.execute(_COUNT).scalar_one())
    done = pages = 0
    while True:
        with engine.begin() as conn:
            if engine.dialect.name == "sqlite":
                conn.exec_driver_sql("BEGIN IMMEDIATE")
            moved = convert_page(conn)
        if not moved:
            break
        done, pages = done + moved, pages + 1
        if pages % _EVERY == 0:
            _LOG.info("metrics: %d of %d rows are converted", done, total)
    if done:
        _LOG.info("metrics: all %d rows are converted", done)


def convert_page(conn: Connection, limit: int = PAGE) -> int:
    """Move the oldest rows, and return their number; 0: none is left."""
    from phalanx.core.curves import chunks
    from phalanx.core.curves.columns import columns_of

    found = conn.execute(_READ, {"limit": limit}).all()
    rows: list[dict[str, Any]] = []
    for row in found:
        stored = json.loads(row.points) if isinstance(row.points, str) else row.points
        points = [MetricPoint(rank, step, at, _numbers(cells)) for rank, step, at, cells in stored]
        if points:
            columns = columns_of(points)
            named = {"id": row.id, "last_id": row.id, "job": row.job, "attempt": row.attempt}
            named |= {"generation": row.generation, "folded": 0}
            rows.append(named | chunk_row(columns, chunks.encode(columns)))
    if rows:
        conn.execute(metric_chunks.insert(), rows)
    if found:
        conn.execute(_DROP, {"last": found[-1].id})
    return len(found)
