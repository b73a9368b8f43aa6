"""The table of packed output: `store.logs` reads and writes it."""

from __future__ import annotations

from sqlalchemy import DDL, JSON, BigInteger, Column, Index, LargeBinary, String, Table, event

from phalanx.store.tables import metadata

# The index of packs: files or objects with many segments of one job. Their segments are no rows any more.
log_packs = Table(
    "log_packs",
    metadata,
    Column("name", String(64), primary_key=True),  # of the file, in the folder of the job
    Column("job", BigInteger, nullable=False),
    Column("state", String(8), nullable=False),  # store.logs.packs.PackState
    Column("changed_at", BigInteger, nullable=False),  # of the state
    Column("first_id", BigInteger, nullable=False),  # of its segments
    Column("last_id", BigInteger, nullable=False),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),  # of output
    Column("file_bytes", BigInteger, nullable=False),
    Column("num_lines", BigInteger, nullable=False),  # ends of lines
    Column("levels", JSON, nullable=False),  # number of lines by level
    # [attempt, generation, rank, stream, end of what is told before, first offset, end, lost bytes]
    Column("streams", JSON, nullable=False),
    Column("grams", LargeBinary, nullable=False),  # see core.logs.grams
    Index(None, "job", "last_id"),
    Index(None, "state", "changed_at"),
)

# It is read often, and bits of a hash do not compress.
_external = DDL("ALTER TABLE log_packs ALTER COLUMN grams SET STORAGE EXTERNAL")  # type: ignore[no-untyped-call]
event.listen(log_packs, "after_create", _external.execute_if(dialect="postgresql"))

# Senders of output to other log stores, by their names in the settings.
log_senders = Table(
    "log_senders",
    metadata,
    Column("name", String(64), primary_key=True),
    # Jobs with output behind this segment are sent: those that print after the sender was set up.
    Column("begin_id", BigInteger, nullable=False),
    Column("sent_lines", BigInteger, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("refused_lines", BigInteger, nullable=False),  # that the endpoint does not take
    Column("tries", BigInteger, nullable=False),  # that failed since the last success
    Column("not_before", BigInteger, nullable=False),  # of the next try
    Column("oldest_at", BigInteger),  # arrival of the oldest line that waits; NULL: none does
    Column("sent_at", BigInteger),  # of the last success
    Column("error", String(400), nullable=False),  # of the last try; empty: none
)

# How far each sender is in the output of each job.
log_positions = Table(
    "log_positions",
    metadata,
    Column("sender", String(64), primary_key=True),
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("sent_id", BigInteger, nullable=False),  # everything up to this segment was sent, except
    Column("opened", JSON, nullable=False),  # lines that have not ended: [*key, offset] of each
    Column("num_opened", BigInteger, nullable=False),
    Index(None, "job"),
    Index(None, "sender", "num_opened"),
)
