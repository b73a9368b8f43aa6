"""Schedules of jobs, and what became of their due times."""

import sqlalchemy as sa

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("project", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(256), nullable=False),
        sa.Column("cron", sa.String(128), nullable=False),
        sa.Column("timezone", sa.String(128), nullable=False),
        sa.Column("catch_up", sa.String(8), nullable=False),
        sa.Column("catch_up_limit", sa.Integer(), nullable=False),
        sa.Column("overlap", sa.String(8), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("code_digest", sa.String(64), nullable=True),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.String(128), nullable=False),
    )
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"])
    op.create_table(
        "schedule_runs",
        sa.Column("project", sa.String(128), primary_key=True),
        sa.Column("schedule", sa.String(128), primary_key=True),
        sa.Column("due_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("handled_at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=True),
        sa.Column("num_jobs", sa.Integer(), nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
