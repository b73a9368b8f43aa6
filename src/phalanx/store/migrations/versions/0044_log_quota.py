"""Output that the quota of all jobs deleted."""

import sqlalchemy as sa

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("by_quota", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("log_streams", column)


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
