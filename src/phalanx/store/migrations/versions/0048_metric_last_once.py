"""The newest value of a metric stands in one table, which queries over runs read by the name."""

from alembic import op

revision = "0048"
down_revision = "0047b"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("metric_series", "last_value")
    op.create_index("ix_metric_last_name_job", "metric_last", ["name", "job"])


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
