"""Anomalies of cost, imported bills, and the slot type of rows of the ledger."""

import sqlalchemy as sa

from alembic import op

revision = "0034"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    names = ("cost_anomaly", "cost_judged", "bill")
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in names])
    op.add_column(
        "cost_rows",
        sa.Column("slot_type", sa.String(length=128), nullable=False, server_default=""),
    )
    op.create_table(
        "cost_anomalies",
        sa.Column("num", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("found_at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("num", name="pk_cost_anomalies"),
    )
    op.create_index("ix_cost_anomalies_state", "cost_anomalies", ["state"])
    op.create_table(
        "bills",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("imported_at", sa.BigInteger(), nullable=False),
        sa.Column("imported_by", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_bills"),
    )
    op.create_table(
        "bill_lines",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("bill", sa.String(length=128), nullable=False),
        sa.Column("from_at", sa.BigInteger(), nullable=False),
        sa.Column("to_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("place", sa.String(length=256), nullable=False),
        sa.Column("slot_type", sa.String(length=128), nullable=False),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_bill_lines"),
    )
    op.create_index("ix_bill_lines_bill", "bill_lines", ["bill"])
    op.create_index("ix_bill_lines_from_at", "bill_lines", ["from_at"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
