"""The first schema."""

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("counters",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counters"),
    )
    op.create_table("jobs",
        sa.Column("num", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("framework", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason_code", sa.String(length=32), nullable=False),
        sa.Column("reason_message", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pools", sa.JSON(), nullable=False),
        sa.Column("cpus_per_node", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("code_digest", sa.String(length=64), nullable=True),
        sa.Column("caller_cwd", sa.Text(), nullable=True),
        sa.Column("caller_env", sa.JSON(), nullable=True),
        sa.Column("snapshot", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("num_slots", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("wake_at", sa.BigInteger(), nullable=True),
        sa.Column("stays_code", sa.String(length=32), nullable=True),
        sa.Column("stays_message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("num", name="pk_jobs"),
    )
    op.create_index("ix_jobs_project_submitted_at", "jobs", ["project", "submitted_at"], unique=False)
    op.create_index("ix_jobs_state", "jobs", ["state"], unique=False)
    op.create_index("ix_jobs_wake_at", "jobs", ["wake_at"], unique=False)
    op.create_table("events",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("feed", sa.BigInteger(), nullable=False),
        sa.Column("v", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.JSON(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", "seq", name="pk_events"),
        sa.UniqueConstraint("feed"),
    )
    op.create_table("commands",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("done_at", sa.BigInteger(), nullable=True),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_token", sa.String(length=32), nullable=True),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
    )
    op.create_index("ix_commands_done_at_not_before", "commands", ["done_at", "not_before"], unique=False)
    op.create_index("ix_commands_job_attempt", "commands", ["job", "attempt"], unique=False)
    op.create_table("leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table("supervisors",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("node_rank", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=True),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=True),
        sa.Column("clock_offset_us", sa.BigInteger(), nullable=True),
        sa.Column("host", sa.String(length=256), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("num_epochs", sa.Integer(), nullable=True),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("pids", sa.JSON(), nullable=False),
        sa.Column("warm", sa.Boolean(), nullable=True),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job", "attempt", "node_rank", name="pk_supervisors"),
    )
    op.create_table("generations",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("generation", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("up_at", sa.BigInteger(), nullable=True),
        sa.Column("first_step_at", sa.BigInteger(), nullable=True),
        sa.Column("last_step_at", sa.BigInteger(), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("failed_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job", "attempt", "generation", name="pk_generations"),
    )
    op.create_table("restores",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("generation", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.Column("took_s", sa.Float(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", "generation", name="pk_restores"),
    )
    op.create_table("checkpoints",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("took_s", sa.Float(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
    )
    op.create_index("ix_checkpoints_job_path", "checkpoints", ["job", "path"], unique=True)
    op.create_index("ix_checkpoints_job_step", "checkpoints", ["job", "step"], unique=False)
    op.create_table("ledger_rows",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("generation", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("node_rank", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("num_samples", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", "generation", "node_rank", name="pk_ledger_rows"),
    )
    op.create_table("metric_chunks",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("node_rank", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_metric_chunks"),
    )
    op.create_index("ix_metric_chunks_job_id", "metric_chunks", ["job", "id"], unique=False)
    op.create_table("log_segments",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("stream", sa.String(length=3), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_segments"),
    )
    op.create_index("ix_log_segments_job_attempt_generation_rank_stream_offset", "log_segments", ["job", "attempt", "generation", "rank", "stream", "offset"], unique=True)
    op.create_index("ix_log_segments_job_id", "log_segments", ["job", "id"], unique=False)
    table = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    names = ("job", "feed", "command", "checkpoint", "metric", "log")
    op.bulk_insert(table, [{"name": name, "value": 0} for name in names])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
