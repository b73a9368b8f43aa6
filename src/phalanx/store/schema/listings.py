"""The table that listings of jobs read: `store.listings` reads and writes it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table, text

from phalanx.store.tables import metadata

_EMPTY = text("''")
_NONE = text("0")


def _word(name: str, length: int = 128) -> Column[str]:
    """A text that both databases sort by its bytes: by the rules of a language it takes longer."""
    bytewise = String(length).with_variant(String(length, collation="C"), "postgresql")
    return Column(name, bytewise, nullable=False, server_default=_EMPTY)


# One narrow row for each row of `jobs`, with every column that a listing filters or sorts by, so that a
# page reads no wide row that it does not show.
job_listing = Table(
    "job_listing",
    metadata,
    # The number of the row in SQLite, so that the newest jobs are read without a second index.
    Column(
        "num",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=False,
    ),
    # Numbers first, those that each job has before the others: PostgreSQL finds them without reading what
    # is in front of them.
    Column("submitted_at", BigInteger, nullable=False),
    Column(
        "slot_seconds", Float, nullable=False, server_default=_NONE
    ),  # of attempts that are over
    Column(
        "nano_usd", BigInteger, nullable=False, server_default=_NONE
    ),  # of the same; 1e-9 US dollars
    Column("priority", Integer, nullable=False, server_default=_NONE),
    Column("num_slots", Integer, nullable=False, server_default=_NONE),
    Column("num_nodes", Integer, nullable=False, server_default=_NONE),
    Column("restarts", Integer, nullable=False, server_default=_NONE),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("queue_s", Float),  # in the queue before all placements; NULL: none so far
    Column("duration_s", Float),  # from the first start to the end; NULL: one of them is missing
    Column("best", Float),  # the best value of `metric`; NULL: none so far
    Column("study", BigInteger),
    Column("array", BigInteger),
    _word("state", 16),
    _word("reason", 32),  # core.reasons.ReasonCode of the state
    _word("pending", 32),  # why a queued job waits; empty: not known, or not queued
    _word("cause", 32),  # core.reasons.Cause of the last failure; empty: none
    _word("project"),
    _word("owner"),
    _word("name", 256),
    _word("framework", 32),
    _word("kind", 16),
    _word("pool"),  # of the newest placement; empty: none so far
    _word("slot_type"),  # accelerator that the spec asks for; empty: any
    _word("image", 512),  # of the container; empty: none
    _word("metric", 256),  # that the job is compared by; empty: none
    _word("goal", 16),  # min or max, of `metric`; empty: the newest value counts
    _word("entry_point", 512),  # script, module or program that the leading ranks run
    _word("algorithm", 128),  # search method of its study; empty: it is no trial
    # Space on each page for new versions of its rows; a scan in one process, without starting others.
    postgresql_with={"fillfactor": 80, "parallel_workers": 0},
)

# Inputs that a spec names: a job has any number of them, and they never change.
job_data = Table(
    "job_data",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(256), primary_key=True),
    # Absolute path or URL, compared by its bytes; a longer one is cut, as an index could not hold it.
    Column(
        "path",
        String(512).with_variant(String(512, collation="C"), "postgresql"),
        nullable=False,
    ),
    Index(None, "path", "job"),
)

# Columns that do not change while a job runs: a change of the others writes no index.
STEADY = (
    *("name", "project", "owner", "framework", "slot_type", "image", "priority", "num_slots"),
    *("num_nodes", "submitted_at"),
)
for _name in STEADY:
    Index(None, job_listing.c[_name], job_listing.c.num)
