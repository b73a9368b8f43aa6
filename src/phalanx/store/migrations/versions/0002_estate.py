"""Pools, projects, marks on nodes, holes of the planner, usage of projects, demands of jobs."""

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("demand", sa.JSON(), nullable=True))
    op.add_column(
        "jobs",
        sa.Column("attained_slot_s", sa.Float(), nullable=False, server_default=sa.text("0")),
    )
    op.create_index("ix_jobs_ended_at", "jobs", ["ended_at"], unique=False)
    for table in ("pools", "projects"):
        op.create_table(
            table,
            sa.Column("name", sa.String(length=128), nullable=False),
            sa.Column("body", sa.JSON(), nullable=False),
            sa.Column("applied_at", sa.BigInteger(), nullable=False),
            sa.Column("applied_by", sa.String(length=128), nullable=False),
            sa.PrimaryKeyConstraint("name", name=f"pk_{table}"),
        )
    op.create_table(
        "node_marks",
        sa.Column("node", sa.String(length=256), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_node_marks"),
    )
    op.create_table(
        "holes",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("placement", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_holes"),
    )
    op.create_table(
        "project_usage",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("average_slots", sa.Float(), nullable=False),
        sa.Column("held_slots", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_project_usage"),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
