"""The audit log, which the database itself keeps from being changed."""

import sqlalchemy as sa

from alembic import op
from phalanx.store.engines.append_only import protect_audit_log

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=140), nullable=False),
        sa.Column("credential", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=160), nullable=False),
        sa.Column("target", sa.String(length=300), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_actor_id", "audit_log", ["actor", "id"], unique=False)
    op.create_index("ix_audit_log_target_id", "audit_log", ["target", "id"], unique=False)
    conn = op.get_bind()
    conn.execute(sa.text("INSERT INTO counters (name, value) VALUES ('audit', 0)"))
    protect_audit_log(conn)


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
