"""References of secrets to values in secret managers."""

import sqlalchemy as sa

from alembic import op

revision = "0031"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("secrets", sa.Column("source", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
