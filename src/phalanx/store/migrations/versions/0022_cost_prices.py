"""The price table."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cost_prices",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("pool", sa.String(length=128), nullable=False),
        sa.Column("slot_type", sa.String(length=128), nullable=False),
        sa.Column("spot", sa.String(length=3), nullable=False),
        sa.Column("valid_from", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.Column("set_by", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint(
            "kind", "pool", "slot_type", "spot", "valid_from", name="pk_cost_prices"
        ),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
