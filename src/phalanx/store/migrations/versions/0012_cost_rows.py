"""The cost ledger."""

import sqlalchemy as sa

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_ACCOUNTS = (
    "queued",
    "starting",
    "productive",
    "saving",
    "redone",
    "lost_to_failure",
    "lost_to_preemption",
    "idle",
)


def upgrade() -> None:
    op.create_table(
        "cost_rows",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("from_at", sa.BigInteger(), nullable=False),
        sa.Column("to_at", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("study", sa.BigInteger(), nullable=True),
        sa.Column("trial", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("pool", sa.String(length=128), nullable=False),
        sa.Column("ended_by", sa.String(length=16), nullable=True),
        sa.Column("slots", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _ACCOUNTS),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cost_rows"),
    )
    op.create_index("ix_cost_rows_job", "cost_rows", ["job"], unique=False)
    op.create_index("ix_cost_rows_study_trial", "cost_rows", ["study", "trial"], unique=False)
    op.create_index("ix_cost_rows_from_at", "cost_rows", ["from_at"], unique=False)
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": "cost_row", "value": 0}])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
