"""Drop `metric_points`: what is left of the rows of before becomes chunks of columns."""

from alembic import op
from phalanx.store.schema.metric_points import convert_page

revision = "0041b"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    while convert_page(op.get_bind()):
        pass
    op.drop_table("metric_points")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
