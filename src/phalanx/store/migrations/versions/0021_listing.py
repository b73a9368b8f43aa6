"""The pool and slot type of a job, its labels as rows, and the index that listings read."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_LISTED = (
    *("num", "state", "project", "owner", "name", "framework", "kind", "pool", "slot_type"),
    *("priority", "num_slots", "restarts", "submitted_at", "started_at", "ended_at"),
    *("attained_slot_s", "study", "array"),
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("pool", sa.String(128)))
    op.add_column(
        "jobs", sa.Column("slot_type", sa.String(128), nullable=False, server_default="")
    )
    labels = op.create_table(
        "job_labels",
        sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("ix_job_labels_name", "job_labels", ["name", "value", "job"])
    _fill(labels)
    op.create_index("ix_jobs_listing", "jobs", list(_LISTED))


def _fill(labels: sa.Table) -> None:
    """Write what earlier releases stored in JSON columns only."""
    conn = op.get_bind()
    rows = conn.execute(sa.text("SELECT num, labels, demand FROM jobs")).all()
    for num, given, demand in rows:
        known = _read(given) or {}
        if known:
            conn.execute(
                labels.insert(),
                [{"job": num, "name": name, "value": str(one)} for name, one in known.items()],
            )
        slot_type = (_read(demand) or {}).get("slot_type")
        if slot_type:
            _set(conn, num, "slot_type", slot_type)
    placed = sa.text("SELECT job, data FROM events WHERE kind = 'attempt_placed' ORDER BY feed")
    pools = {}
    for num, data in conn.execute(placed):
        pools[num] = ((_read(data) or {}).get("placement") or {}).get("pool")
    for num, pool in pools.items():
        if pool is not None:
            _set(conn, num, "pool", pool)


def _set(conn: sa.Connection, num: int, column: str, value: str) -> None:
    said = sa.text(f"UPDATE jobs SET {column} = :value WHERE num = :num")
    conn.execute(said, {"value": value, "num": num})


def _read(value: object) -> dict[str, Any] | None:
    """A JSON column: text in SQLite, a value in PostgreSQL."""
    return json.loads(value) if isinstance(value, str | bytes) else value  # type: ignore[return-value]


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
