"""Quotas of users on the whole platform, and alerts of quotas."""

import sqlalchemy as sa

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "user_quotas",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("applied_at", sa.BigInteger(), nullable=False),
        sa.Column("applied_by", sa.String(128), nullable=False),
    )
    op.create_table(
        "quota_alerts",
        sa.Column("project", sa.String(128), primary_key=True),
        sa.Column("user", sa.String(128), primary_key=True),
        sa.Column("slot_type", sa.String(128), primary_key=True),
        sa.Column("unit", sa.String(16), primary_key=True),
        sa.Column("percent", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("reached_at", sa.BigInteger(), nullable=True),
        sa.Column("told_at", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
    )
    live = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_jobs_live_owner", "jobs", ["owner"], sqlite_where=live, postgresql_where=live
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
