"""Metrics as chunks of columns, with roll-ups; the rows of before wait in `metric_points`.

`phalanx.store.schema.metric_points` moves them from there, page by page.
"""

import sqlalchemy as sa

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("ix_metric_chunks_job_id", "ix_metric_chunks_job_first_rank_last_rank"):
        op.drop_index(name, "metric_chunks")
    op.rename_table("metric_chunks", "metric_points")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE metric_points RENAME CONSTRAINT pk_metric_chunks TO pk_metric_points")
    op.create_table(
        "metric_chunks",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("first_rank", sa.Integer(), nullable=False),
        sa.Column("last_rank", sa.Integer(), nullable=False),
        sa.Column("num_rows", sa.Integer(), nullable=False),
        sa.Column("newest_at", sa.BigInteger(), nullable=False),
        sa.Column("folded", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_metric_chunks"),
    )
    for columns in (["job", "id"], ["job", "last_id"], ["last_id"], ["job", "last_step"]):
        op.create_index(f"ix_metric_chunks_{'_'.join(columns)}", "metric_chunks", columns)
    op.create_index("ix_metric_chunks_folded_job", "metric_chunks", ["folded", "job"])
    _create_roll_ups()
    if op.get_bind().dialect.name == "postgresql":
        for table, column in (
            *(("metric_chunks", "data"), ("metric_series", "samples"), ("metric_pages", "data")),
        ):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")


def _create_roll_ups() -> None:
    op.create_table(
        "metric_series",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("stride", sa.BigInteger(), nullable=False),
        sa.Column("levels", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("job", "name", "rank", name="pk_metric_series"),
    )
    op.create_table(
        "metric_pages",
        sa.Column("job", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("level", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("page", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "name", "rank", "level", "page", name="pk_metric_pages"),
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
