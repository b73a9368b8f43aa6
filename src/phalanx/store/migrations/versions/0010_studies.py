"""Studies, their events, trials and commands; jobs name the trial that they run."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("study", sa.BigInteger()))
    op.add_column("jobs", sa.Column("trial", sa.BigInteger()))
    op.create_index("ix_jobs_study_trial", "jobs", ["study", "trial"])
    _studies()
    _trials()
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in ("study", "study_command")])


def _studies() -> None:
    op.create_table(
        "studies",
        sa.Column("num", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("submission", sa.JSON(), nullable=False),
        sa.Column("code_digest", sa.String(length=64)),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason_code", sa.String(length=32), nullable=False),
        sa.Column("reason_message", sa.Text(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("best_trial", sa.BigInteger()),
        sa.Column("slot_s", sa.Float(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("wake_at", sa.BigInteger()),
        sa.Column("max_trials", sa.BigInteger(), nullable=False),
        sa.Column("parallel", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("num", name="pk_studies"),
    )
    op.create_index("ix_studies_state", "studies", ["state"])
    op.create_index("ix_studies_project_submitted_at", "studies", ["project", "submitted_at"])
    op.create_index("ix_studies_wake_at", "studies", ["wake_at"])
    op.create_table(
        "study_events",
        sa.Column("study", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("v", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("trial", sa.BigInteger()),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.JSON(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("study", "seq", name="pk_study_events"),
    )


def _trials() -> None:
    op.create_table(
        "trials",
        sa.Column("study", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trial", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.BigInteger()),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("origin", sa.JSON(), nullable=False),
        sa.Column("rung", sa.Integer()),
        sa.Column("until", sa.BigInteger()),
        sa.Column("unit", sa.BigInteger()),
        sa.Column("value", sa.Float()),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("slot_s", sa.Float(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("study", "trial", name="pk_trials"),
    )
    op.create_index("ix_trials_job", "trials", ["job"])
    op.create_index("ix_trials_study_status", "trials", ["study", "status"])
    op.create_table(
        "study_commands",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("study", sa.BigInteger(), nullable=False),
        sa.Column("trial", sa.BigInteger()),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_study_commands"),
    )
    op.create_index("ix_study_commands_not_before", "study_commands", ["not_before"])
    op.create_index("ix_study_commands_study", "study_commands", ["study"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
