"""The state of a checkpoint's copy in the object store."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("copy_state", sa.String(16)))
    op.add_column("checkpoints", sa.Column("copy_bytes", sa.BigInteger))
    op.add_column("checkpoints", sa.Column("copied_at", sa.BigInteger))


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
