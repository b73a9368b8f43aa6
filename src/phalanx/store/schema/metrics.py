"""Tables of metrics: chunks of points, names and newest values of each job, and roll-ups by series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Double,
    Float,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    event,
)

from phalanx.store.tables import metadata

if TYPE_CHECKING:
    from phalanx.core.curves.columns import MetricColumns

metric_chunks = Table(
    "metric_chunks",
    metadata,
    # The first and the last report in the chunk, in the order of arrival of those of all jobs.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("last_id", BigInteger, nullable=False),
    Column("job", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("first_rank", Integer, nullable=False),
    Column("last_rank", Integer, nullable=False),
    Column("num_rows", Integer, nullable=False),
    Column("newest_at", BigInteger, nullable=False),  # µs UTC, of its points
    Column("folded", Integer, nullable=False),  # 1: its values are in the roll-ups
    Column("data", LargeBinary, nullable=False),  # see core.curves.chunks
    Index(None, "job", "id"),
    Index(None, "job", "last_id"),
    Index(None, "last_id"),
    Index(None, "job", "last_step"),
    Index(None, "folded", "job"),
)

metric_names = Table(
    "metric_names",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(512), primary_key=True),
)

metric_last = Table(
    "metric_last",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(512), primary_key=True),
    Column("rank", Integer, nullable=False),  # the lowest one that reports it
    Column("step", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),  # µs UTC
    Column("value", Double),  # NULL: it is not a number
    Index(None, "name", "job"),
)

metric_series = Table(
    "metric_series",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(512), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("stride", BigInteger, nullable=False),  # usual distance between two steps
    Column("levels", Integer, nullable=False),  # of its roll-ups; 0: `samples` has all of it
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),  # steps that have a value
    Column("samples", LargeBinary),  # of a short series; see core.curves.rollups
    # The least and the most finite value of all that was reported; NULL: none so far.
    Column("min_value", Float),
    Column("max_value", Float),
    Index(None, "name", "rank", "job"),
)

metric_pages = Table(
    "metric_pages",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(512), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("page", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),  # intervals; see core.curves.rollups
)

# PostgreSQL would compress again what is compressed, and what is read often.
for _table, _column in (
    (metric_chunks, "data"),
    (metric_series, "samples"),
    (metric_pages, "data"),
):
    _external = DDL(f"ALTER TABLE {_table.name} ALTER COLUMN {_column} SET STORAGE EXTERNAL")  # type: ignore[no-untyped-call]
    event.listen(_table, "after_create", _external.execute_if(dialect="postgresql"))


def chunk_row(columns: MetricColumns, data: bytes) -> dict[str, Any]:
    """What a row of a chunk has of its points."""
    return {
        "first_step": int(columns.steps.min()),
        "last_step": int(columns.steps.max()),
        "first_rank": int(columns.ranks.min()),
        "last_rank": int(columns.ranks.max()),
        "num_rows": columns.num_rows,
        "newest_at": int(columns.times.max()),
        "data": data,
    }
