"""Job arrays: the array and the index of its elements, and the elements that wait for their turn."""

import sqlalchemy as sa

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("array", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("array_index", sa.BigInteger(), nullable=True))
    op.create_index("ix_jobs_array_array_index", "jobs", ["array", "array_index"])
    op.create_table(
        "array_turns",
        sa.Column("array", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("array", "job", name="pk_array_turns"),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
