"""Totals of metrics that all control planes of a database share."""

import sqlalchemy as sa

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "metric_totals",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("labels", sa.String(512), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", "labels", name="pk_metric_totals"),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
