"""Texts by digest, and what attempts report of their software and inputs."""

import sqlalchemy as sa

from alembic import op

revision = "0036"
down_revision = "0035b"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "provenance_texts",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "attempt_software",
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("node_rank", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "attempt_inputs",
        sa.Column("job", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("node_rank", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("num_files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.String(256), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
