"""The images that attempts ran in, with their digests."""

import sqlalchemy as sa

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempt_images",
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("node_rank", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("image", sa.String(512), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
