"""Keys of requests that take effect once, with their answers."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "request_keys",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.JSON()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_request_keys"),
    )
    op.create_index("ix_request_keys_created_at", "request_keys", ["created_at"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
