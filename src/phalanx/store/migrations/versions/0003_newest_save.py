"""Indexes by which the newest valid checkpoint of a job, and a supervisor's token, are found at once."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_checkpoints_job_state_id", "checkpoints", ["job", "state", "id"], unique=False
    )
    op.create_index("ix_supervisors_token_hash", "supervisors", ["token_hash"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
