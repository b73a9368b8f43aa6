"""Entry points, search algorithms and data paths of jobs, for filters of listings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from phalanx.store.index.listing import LONGEST, entry_point

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_BATCH = 1000


def upgrade() -> None:
    op.add_column("job_listing", _word("entry_point", 512))
    op.add_column("job_listing", _word("algorithm", 128))
    data = op.create_table(
        "job_data",
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("path", _bytewise(512), nullable=False),
    )
    op.create_index("ix_job_data_path_job", "job_data", ["path", "job"])
    _fill(op.get_bind(), data)


def _bytewise(length: int) -> Any:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _word(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, _bytewise(length), nullable=False, server_default="")


def _fill(conn: sa.Connection, data: sa.Table) -> None:
    """Write what the jobs that are stored have."""
    studies = conn.execute(sa.text("SELECT num, spec FROM studies")).all()
    methods = {num: str((_read(spec).get("search") or {}).get("method") or "") for num, spec in studies}
    change = sa.text(
        "UPDATE job_listing SET entry_point = :entry_point, algorithm = :algorithm WHERE num = :num"
    )
    for rows in _pages(conn):
        found, inputs = [], []
        for row in rows:
            spec, contract = _read(row["spec"]), _read(row["contract"])
            entry = entry_point(spec, contract)[:LONGEST]
            algorithm = methods.get(row["study"], "")[:128]
            found.append({"num": row["num"], "entry_point": entry, "algorithm": algorithm})
            for name, path in (spec.get("data") or {}).items():
                inputs.append({"job": row["num"], "name": name, "path": str(path)[:LONGEST]})
        conn.execute(change, found)
        if inputs:
            conn.execute(data.insert(), inputs)


def _pages(conn: sa.Connection) -> Iterator[Sequence[Mapping[Any, Any]]]:
    query = sa.text(
        "SELECT num, study, spec, contract FROM jobs WHERE num > :after ORDER BY num "
        f"LIMIT {_BATCH}"
    )
    after = 0
    while rows := list(conn.execute(query, {"after": after}).mappings()):
        yield rows
        after = rows[-1]["num"]


def _read(value: object) -> dict[str, Any]:
    """A JSON column: text in SQLite, a value in PostgreSQL."""
    found = json.loads(value) if isinstance(value, str | bytes) else value
    return found or {}  # type: ignore[return-value]


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
