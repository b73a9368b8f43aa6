"""Sums of the cost ledger by day."""

import sqlalchemy as sa

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_AMOUNTS = (
    "queued",
    "starting",
    "productive",
    "saving",
    "redone",
    "lost_to_failure",
    "lost_to_preemption",
    "idle",
    "nano_usd",
)


def upgrade() -> None:
    op.create_table(
        "cost_days",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("pool", sa.String(length=128), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _AMOUNTS),
        sa.PrimaryKeyConstraint("day", "project", "owner", "pool", name="pk_cost_days"),
    )
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": "cost_folded", "value": 0}])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
