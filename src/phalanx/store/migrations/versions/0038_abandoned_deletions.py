"""Deletions of jobs that were given up, because a store with copies does not come back."""

import sqlalchemy as sa

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deleted_jobs", sa.Column("abandoned_by", sa.String(140), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")

