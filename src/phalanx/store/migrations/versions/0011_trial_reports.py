"""Reports of trials, and pins of checkpoints."""

import sqlalchemy as sa

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trial_reports",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("unit", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trial_reports"),
    )
    op.create_index("ix_trial_reports_job_unit", "trial_reports", ["job", "unit"], unique=True)
    op.create_table(
        "checkpoint_pins",
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=128), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "path", "by", name="pk_checkpoint_pins"),
    )
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": "trial_report", "value": 0}])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
