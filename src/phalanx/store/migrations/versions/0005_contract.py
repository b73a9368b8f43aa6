"""The contract of a job, made at submit; older jobs have none and it is derived from their spec."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("contract", sa.JSON))


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
