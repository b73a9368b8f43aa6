"""Plain names: holes become reservations, and the reason of a queued job its pending reason.

The table `leases` goes: no release ever wrote to it. The dispatcher's leases are columns of `commands`.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.rename_table("holes", "reservations")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE reservations RENAME CONSTRAINT pk_holes TO pk_reservations")
    op.execute("UPDATE reservations SET kind = 'preemption' WHERE kind = 'eviction'")
    op.execute("ALTER TABLE jobs RENAME COLUMN stays_code TO pending_code")
    op.execute("ALTER TABLE jobs RENAME COLUMN stays_message TO pending_message")
    op.drop_table("leases")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
