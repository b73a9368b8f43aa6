"""Marks on jobs, deleted jobs, and checkpoints with files that are to be deleted."""

import sqlalchemy as sa

from alembic import op

revision = "0035b"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_marks",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.String(140), nullable=False),
    )
    op.create_index("ix_job_marks_job", "job_marks", ["job"])
    op.create_table(
        "deleted_jobs",
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_by", sa.String(140), nullable=False),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("remains", sa.JSON(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("done_at", sa.BigInteger(), nullable=True),
    )
    op.create_index(
        "ix_deleted_jobs_done_at_not_before", "deleted_jobs", ["done_at", "not_before"]
    )
    op.create_index(
        "ix_deleted_jobs_project_deleted_at", "deleted_jobs", ["project", "deleted_at"]
    )
    op.create_table(
        "checkpoint_removals",
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("path", sa.Text(), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
    )
    op.create_index("ix_checkpoint_removals_not_before", "checkpoint_removals", ["not_before"])
    op.create_table(
        "removal_totals",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("cause", sa.String(16), primary_key=True),
        sa.Column("items", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
