"""Stores of data outside the nodes, with the residency of each."""

import sqlalchemy as sa

from alembic import op

revision = "0035"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "data_stores",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("applied_at", sa.BigInteger(), nullable=False),
        sa.Column("applied_by", sa.String(128), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
