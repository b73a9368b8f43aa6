"""The built-in notifier: samples, live alerts, silences, what groups were told, and messages."""

import sqlalchemy as sa

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    names = ("alert_silence", "delivery", "notify_feed")
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in names])
    op.create_table(
        "alert_samples",
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("at", name="pk_alert_samples"),
    )
    op.create_table(
        "live_alerts",
        sa.Column("fingerprint", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_live_alerts"),
    )
    op.create_table(
        "alert_silences",
        sa.Column("num", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("num", name="pk_alert_silences"),
    )
    op.create_table(
        "told_groups",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_told_groups"),
    )
    op.create_table(
        "deliveries",
        sa.Column("num", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("receiver", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("done_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.String(length=400), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("num", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_state_due_at", "deliveries", ["state", "due_at"])
    op.create_table(
        "gone_receivers",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.String(length=400), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_gone_receivers"),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
