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
        ("log_streams", ("packed", "cut_begin", "cut_end")),
        ("log_volumes", ("loose_bytes", "newest_at")),
    ):
        for name in names:
            column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            op.add_column(table, column)
    op.execute("UPDATE log_volumes SET loose_bytes = stored_bytes")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
