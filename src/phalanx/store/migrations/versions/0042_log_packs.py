"""Output in packs: their index, what each stream has in them, and the segments that are not packed yet."""

import sqlalchemy as sa

from alembic import op

revision = "0042"
down_revision = "0041b"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "log_packs",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("first_id", sa.BigInteger(), nullable=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("levels", sa.JSON(), nullable=False),
        sa.Column("streams", sa.JSON(), nullable=False),
        sa.Column("grams", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_log_packs"),
    )
    op.create_index("ix_log_packs_job_last_id", "log_packs", ["job", "last_id"])
    op.create_index("ix_log_packs_state_changed_at", "log_packs", ["state", "changed_at"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE log_packs ALTER COLUMN grams SET STORAGE EXTERNAL")
    for table, names in (
        ("log_streams", ("end_id", "end_at", "end_lost", "packed")),
        ("log_streams", ("cut_begin", "cut_end", "cut_lost")),
        ("log_volumes", ("cut_id", "cut_at", "loose_bytes", "newest_at")),
    ):
        for name in names:
            column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            op.add_column(table, column)
    op.create_index("ix_log_streams_job_end_id", "log_streams", ["job", "end_id"])
    op.execute("UPDATE log_volumes SET loose_bytes = stored_bytes")
    _move_marks()


_SAME = " AND ".join(
    f"log_segments.{name} = log_streams.{name}"
    for name in ("job", "attempt", "generation", "rank", "stream")
)
_NO_DATA = "length(log_segments.data) = 0"
_MARK = f"SELECT {{what}} FROM log_segments WHERE {_SAME} AND {_NO_DATA}"  # noqa: S608
_STORED = (
    f'SELECT log_segments."offset" + length(log_segments.data) FROM log_segments WHERE {_SAME} '  # noqa: S608
    f'AND NOT {_NO_DATA} ORDER BY log_segments."offset" DESC LIMIT 1'
)


def _move_marks() -> None:
    """Segments without data told of what is missing at the end of a stream: its row tells that now."""
    at_size = 'log_segments."offset" = log_streams.size'
    one = f"{_MARK} AND {at_size} ORDER BY log_segments.id DESC LIMIT 1"
    ends = {"end_id": "id", "end_at": "at", "end_lost": "dropped"}
    values = ", ".join(
        f"{name} = coalesce(({one.format(what=f'log_segments.{what}')}), 0)"
        for name, what in ends.items()
    )
    op.execute(f"UPDATE log_streams SET {values} WHERE size IS NOT NULL")  # noqa: S608
    # Streams of which the newest bytes are not stored, because of the limit of their job.
    op.execute(
        f"UPDATE log_streams SET cut_begin = coalesce(({_STORED}), expired), cut_end = received "  # noqa: S608
        f"WHERE received > expired AND received > coalesce(({_STORED}), 0)"
    )
    of_job = f"FROM log_segments WHERE log_segments.job = log_volumes.job AND {_NO_DATA}"
    op.execute(
        f"UPDATE log_volumes SET cut_at = coalesce((SELECT max(log_segments.at) {of_job}), 0), "  # noqa: S608
        f"cut_id = coalesce((SELECT max(log_segments.id) {of_job}), 0) WHERE EXISTS "
        "(SELECT 1 FROM log_streams WHERE log_streams.job = log_volumes.job AND cut_end > 0)"
    )
    op.execute(f"DELETE FROM log_segments WHERE {_NO_DATA}")  # noqa: S608


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
