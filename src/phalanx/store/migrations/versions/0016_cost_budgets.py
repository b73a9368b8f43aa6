"""Budgets of money and slot time."""

import sqlalchemy as sa

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cost_budgets",
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("nano_usd", sa.BigInteger(), nullable=True),
        sa.Column("slot_us", sa.BigInteger(), nullable=True),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("warn", sa.JSON(), nullable=False),
        sa.Column("pause_percent", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=True),
        sa.Column("alerts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", name="pk_cost_budgets"),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
