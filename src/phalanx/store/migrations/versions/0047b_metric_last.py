"""The newest value of each metric of a job, taken from the newest chunk of each job that has one."""

import sqlalchemy as sa

from alembic import op

revision = "0047b"
down_revision = "0047"
branch_labels = None
depends_on = None

_JOBS = sa.text("SELECT DISTINCT job FROM metric_chunks")
_NEWEST = sa.text(
    "SELECT data FROM metric_chunks WHERE job = :job ORDER BY last_id DESC LIMIT 1"
)
_MOST_NAMES = 1000


def upgrade() -> None:
    table = op.create_table(
        "metric_last",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.PrimaryKeyConstraint("job", "name", name="pk_metric_last"),
    )
    conn = op.get_bind()
    for job in list(conn.execute(_JOBS).scalars()):
        rows = _rows(job, conn.execute(_NEWEST, {"job": job}).scalar_one())
        if rows:
            conn.execute(table.insert(), rows)


def _rows(job: int, data: bytes) -> list[dict[str, object]]:
    """The values of a chunk; none of one that is damaged."""
    from phalanx.core.curves import chunks
    from phalanx.store.database import columns_of
    from phalanx.store.metrics.last_values import newest_of

    try:
        columns = chunks.decode(data).columns
    except ValueError:
        return []
    return [columns_of(one) for one in list(newest_of(job, columns).values())[:_MOST_NAMES]]


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
