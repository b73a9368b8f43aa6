"""Senders of output to other log stores, and the newest segment of each job."""

import sqlalchemy as sa

from alembic import op

revision = "0044b"
down_revision = "0044"
branch_labels = None
depends_on = None

_NUMBERS = ("begin_id", "sent_lines", "sent_bytes", "refused_lines", "tries", "not_before")


def upgrade() -> None:
    op.create_table(
        "log_senders",
        sa.Column("name", sa.String(64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _NUMBERS),
        sa.Column("oldest_at", sa.BigInteger()),
        sa.Column("sent_at", sa.BigInteger()),
        sa.Column("error", sa.String(400), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_log_senders"),
    )
    op.create_table(
        "log_positions",
        sa.Column("sender", sa.String(64), nullable=False),
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sent_id", sa.BigInteger(), nullable=False),
        sa.Column("opened", sa.JSON(), nullable=False),
        sa.Column("num_opened", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sender", "job", name="pk_log_positions"),
    )
    op.create_index("ix_log_positions_job", "log_positions", ["job"])
    ended = "ix_log_positions_sender_num_opened"
    op.create_index(ended, "log_positions", ["sender", "num_opened"])
    newest = sa.Column("newest_id", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("log_volumes", newest)
    # Packs have the first segments of a job.
    op.execute(
        "UPDATE log_volumes SET newest_id = coalesce("
        "(SELECT max(id) FROM log_segments WHERE log_segments.job = log_volumes.job), "
        "(SELECT max(last_id) FROM log_packs WHERE log_packs.job = log_volumes.job "
        "AND log_packs.state = 'ready'), 0)"
    )
    op.create_index("ix_log_volumes_newest_id", "log_volumes", ["newest_id"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
