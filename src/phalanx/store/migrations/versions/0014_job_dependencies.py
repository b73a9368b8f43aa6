"""Open dependencies of jobs on jobs."""

import sqlalchemy as sa

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_dependencies",
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("on_job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("job", "on_job", "kind", name="pk_job_dependencies"),
    )
    op.create_index("ix_job_dependencies_on_job", "job_dependencies", ["on_job"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
