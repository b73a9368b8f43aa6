"""What was received of each output stream, and the volume of each job's stored output."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _key(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)


def upgrade() -> None:
    op.create_table(
        "log_streams",
        *map(_key, ("job", "attempt", "generation", "rank")),
        sa.Column("stream", sa.String(3), primary_key=True),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger),
        sa.Column("expired", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "log_volumes",
        _key("job"),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("head_id", sa.BigInteger, nullable=False),
    )
    key = "job, attempt, generation, rank, stream"
    end = "max(log_segments.\"offset\" + length(data))"
    op.execute(
        f"INSERT INTO log_streams ({key}, received) "
        f"SELECT {key}, {end} FROM log_segments GROUP BY {key}"
    )
    op.execute(
        "INSERT INTO log_volumes (job, stored_bytes, head_id) "
        "SELECT job, sum(length(data)), min(id) FROM log_segments GROUP BY job"
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
