"""Tables of kept and moved bytes: `store.storage` reads and writes them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from phalanx.store.tables import metadata

# What jobs keep in stores. A row with equal times is a read: nothing is kept.
stored_objects = Table(
    "stored_objects",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("job", BigInteger, nullable=False),
    Column("project", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("store", String(256), nullable=False),  # URL; core.cost.storage: NODES, LOGS
    Column("kind", String(16), nullable=False),  # core.cost.storage.ObjectKind
    Column("path", Text, nullable=False),  # of the checkpoint; empty for logs
    Column("size_bytes", BigInteger, nullable=False),
    Column("from_at", BigInteger, nullable=False),
    Column("to_at", BigInteger),  # NULL: it is kept
    Index(None, "job"),
    Index(None, "from_at"),
    # Covers the sum of what is kept: reports read no row of it.
    Index(
        "ix_stored_objects_kept",
        *("to_at", "project", "owner", "store", "from_at", "kind", "size_bytes"),
    ),
)

# Their sums by day up to the time in the counter `storage_settled`.
storage_days = Table(
    "storage_days",
    metadata,
    Column("day", BigInteger, primary_key=True, autoincrement=False),  # from 1970, UTC
    Column("project", String(128), primary_key=True),
    Column("owner", String(128), primary_key=True),
    Column("store", String(256), primary_key=True),
    # Bytes times microseconds: multiples of 2**40, and the rest.
    Column("byte_units", BigInteger, nullable=False),
    Column("byte_rest", BigInteger, nullable=False),
    Column("uploaded_bytes", BigInteger, nullable=False),
    Column("read_bytes", BigInteger, nullable=False),
    Column("storage_nano", BigInteger, nullable=False),
    Column("transfer_nano", BigInteger, nullable=False),
)
