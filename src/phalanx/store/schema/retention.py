"""Tables of marks on jobs, of deleted jobs, and of checkpoints with files that are still to be deleted."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, String, Table, Text

from phalanx.store.tables import metadata

# What users say of jobs beside their settings.
job_marks = Table(
    "job_marks",
    metadata,
    Column("kind", String(16), primary_key=True),  # archived or pinned
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("by", String(140), nullable=False),  # id of a principal
    Index(None, "job"),
)

# A row of each deleted job, which stays. While `done_at` is NULL, data of the job is left to delete.
deleted_jobs = Table(
    "deleted_jobs",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(256), nullable=False),
    Column("project", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("deleted_at", BigInteger, nullable=False),
    Column("deleted_by", String(140), nullable=False),  # id of a principal, or `retention`
    Column("cause", String(16), nullable=False),  # core.retention.holds.RemovalCause
    # Where its data is. NULL: everything is deleted. Of a deletion that was given up: what was left.
    Column("remains", JSON),
    Column("tries", Integer, nullable=False),
    Column("not_before", BigInteger, nullable=False),  # of the next try, µs UTC
    Column("error", Text),  # of the last try
    Column("done_at", BigInteger),
    Column("abandoned_by", String(140)),  # that gave up its copies; NULL: they were not given up
    Index(None, "done_at", "not_before"),
    Index(None, "project", "deleted_at"),
)

# Checkpoints of existing jobs that are marked as removed, until their files are deleted.
checkpoint_removals = Table(
    "checkpoint_removals",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("path", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("queued_at", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("error", Text),
    Index(None, "not_before"),
)

# Items and bytes that were deleted, since the database was made.
removal_totals = Table(
    "removal_totals",
    metadata,
    Column("kind", String(16), primary_key=True),  # core.retention.policy.DataKind
    Column("cause", String(16), primary_key=True),  # core.retention.holds.RemovalCause
    Column("items", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
