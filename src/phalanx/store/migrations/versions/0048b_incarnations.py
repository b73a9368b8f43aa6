"""Several supervisors of one node rank in an attempt: those that were lost, and their replacements."""

import sqlalchemy as sa

from alembic import op

revision = "0048b"
down_revision = "0048"
branch_labels = None
depends_on = None

_KEY = ("job", "attempt", "node_rank", "incarnation")


def upgrade() -> None:
    added = sa.Column(
        "incarnation", sa.Integer(), nullable=False, autoincrement=False, server_default=sa.text("0")
    )
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("supervisors", added)
        op.drop_constraint("pk_supervisors", "supervisors")
        op.create_primary_key("pk_supervisors", "supervisors", list(_KEY))
        return
    # SQLite changes no key: the rows move into a new table.
    rows = op.create_table(
        "supervisors_new",
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _KEY[:3]),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger()),
        sa.Column("last_seen_at", sa.BigInteger()),
        sa.Column("clock_offset_us", sa.BigInteger()),
        sa.Column("host", sa.String(256)),
        sa.Column("pid", sa.Integer()),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger()),
        sa.Column("epoch", sa.Integer()),
        sa.Column("num_epochs", sa.Integer()),
        sa.Column("phase", sa.String(64), nullable=False),
        sa.Column("pids", sa.JSON(), nullable=False),
        sa.Column("warm", sa.Boolean()),
        sa.Column("released_at", sa.BigInteger()),
        added,
        sa.PrimaryKeyConstraint(*_KEY, name="pk_supervisors"),
    )
    named = ", ".join(one.name for one in rows.columns if one.name != "incarnation")
    op.execute(f"INSERT INTO supervisors_new ({named}) SELECT {named} FROM supervisors")
    op.drop_table("supervisors")
    op.rename_table("supervisors_new", "supervisors")
    op.create_index("ix_supervisors_token_hash", "supervisors", ["token_hash"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
