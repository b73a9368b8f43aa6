"""Plain names for reservations and pending reasons; ranks and names of metric chunks as columns.

The table `leases` goes: no release ever wrote to it. The dispatcher's leases are columns of `commands`.
"""

import json

import sqlalchemy as sa

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_PAGE = 500


def upgrade() -> None:
    op.rename_table("holes", "reservations")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE reservations RENAME CONSTRAINT pk_holes TO pk_reservations")
    op.execute("UPDATE reservations SET kind = 'preemption' WHERE kind = 'eviction'")
    op.execute("ALTER TABLE jobs RENAME COLUMN stays_code TO pending_code")
    op.execute("ALTER TABLE jobs RENAME COLUMN stays_message TO pending_message")
    op.drop_table("leases")
    _index_metrics(op.get_bind())


def _index_metrics(conn: sa.Connection) -> None:
    op.add_column(
        "metric_chunks",
        sa.Column("first_rank", sa.Integer(), nullable=False, server_default=sa.text("0")),
    )
    op.add_column(
        "metric_chunks",
        sa.Column("last_rank", sa.Integer(), nullable=False, server_default=sa.text("2147483647")),
    )
    op.create_index(
        "ix_metric_chunks_job_first_rank_last_rank",
        "metric_chunks",
        ["job", "first_rank", "last_rank"],
        unique=False,
    )
    op.create_table(
        "metric_names",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.PrimaryKeyConstraint("job", "name", name="pk_metric_names"),
    )
    page = sa.text("SELECT id, job, points FROM metric_chunks WHERE id > :last ORDER BY id LIMIT :n")
    ranks = sa.text("UPDATE metric_chunks SET first_rank = :first, last_rank = :last WHERE id = :id")
    names = sa.text("INSERT INTO metric_names (job, name) VALUES (:job, :name) ON CONFLICT DO NOTHING")
    last = -1
    known: set[tuple[int, str]] = set()
    while rows := conn.execute(page, {"last": last, "n": _PAGE}).all():
        last = rows[-1].id
        for number, job, stored in rows:
            points = json.loads(stored) if isinstance(stored, str) else stored
            held = [point[0] for point in points] or [0]
            conn.execute(ranks, {"id": number, "first": min(held), "last": max(held)})
            fresh = {(job, name) for point in points for name in point[3]} - known
            known |= fresh
            for pair in sorted(fresh):
                conn.execute(names, {"job": pair[0], "name": pair[1]})


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
