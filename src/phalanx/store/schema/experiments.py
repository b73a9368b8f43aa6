"""Tables of runs as experiments: parameters, and the words that queries find runs by."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table

from phalanx.store.tables import metadata


def _bytewise(length: int) -> String:
    """A text that both databases compare by its bytes."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


# Parameters of runs: rows are written once, and only `counts` changes.
run_params = Table(
    "run_params",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("name", _bytewise(200), primary_key=True),
    Column("source", String(16), primary_key=True),  # core.experiments.parameters.ParamSource
    Column(
        "value", _bytewise(500), nullable=False
    ),  # a text as it is, anything else as JSON has it
    Column("kind", String(8), nullable=False),  # text, number, bool or null
    Column("number", Float),  # NULL: the value is no number
    # 1: the value that counts of those with the same name, 0: a later source has one
    Column("counts", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index(None, "name", "number", "job"),
)

# What queries find runs by and the spec has: tags, the group, the beginning of the description, the commit.
run_terms = Table(
    "run_terms",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(8), primary_key=True),  # tag, group, note or commit
    Column("value", _bytewise(500), primary_key=True),
    Index(None, "kind", "value", "job"),
)
