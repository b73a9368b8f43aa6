"""Sums of the cost ledger by job."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_HELD = (
    "starting",
    "productive",
    "saving",
    "redone",
    "lost_to_failure",
    "lost_to_preemption",
    "idle",
)
_AMOUNTS = ("queued", *_HELD, "nano_usd")


def upgrade() -> None:
    op.create_table(
        "cost_job_sums",
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("study", sa.BigInteger()),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in (*_AMOUNTS, "held")),
        sa.PrimaryKeyConstraint("job", name="pk_cost_job_sums"),
    )
    ranked = ["nano_usd", "held", "job"]
    for first in ([], ["project"], ["owner"], ["study"]):
        name = "_".join(["ix_cost_job_sums", *first, *ranked])
        op.create_index(name, "cost_job_sums", [*first, *ranked])
    sums = ", ".join(f"SUM({name})" for name in _AMOUNTS)
    op.execute(
        f"INSERT INTO cost_job_sums (job, project, owner, study, {', '.join(_AMOUNTS)}, held) "
        f"SELECT job, MAX(project), MAX(owner), MAX(study), {sums}, SUM({' + '.join(_HELD)}) "
        "FROM cost_rows "
        "WHERE id <= (SELECT value FROM counters WHERE name = 'cost_folded') GROUP BY job"
    )


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
