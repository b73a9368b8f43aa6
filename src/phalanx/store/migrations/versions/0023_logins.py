"""What logs in as an account, since when it is disabled, and which groups its provider named."""

import sqlalchemy as sa

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("identity", sa.String(512)))
    op.add_column("accounts", sa.Column("disabled_at", sa.BigInteger()))
    op.create_index("ix_accounts_identity", "accounts", ["identity"], unique=True)
    op.add_column(
        "group_members",
        sa.Column("from_login", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
