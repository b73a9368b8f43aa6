"""Accounts, members of groups, granted roles, and the account that each token belongs to."""

import sqlalchemy as sa

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=140), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=140), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
    )
    op.create_table(
        "group_members",
        sa.Column("group_id", sa.String(length=140), nullable=False),
        sa.Column("member", sa.String(length=140), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "member", name="pk_group_members"),
    )
    op.create_index("ix_group_members_member", "group_members", ["member"], unique=False)
    op.create_table(
        "role_grants",
        sa.Column("subject", sa.String(length=140), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("granted_at", sa.BigInteger(), nullable=False),
        sa.Column("granted_by", sa.String(length=140), nullable=False),
        sa.PrimaryKeyConstraint("subject", "project", name="pk_role_grants"),
    )
    op.add_column("credentials", sa.Column("principal", sa.String(length=140), nullable=True))
    op.create_index("ix_credentials_principal", "credentials", ["principal"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
