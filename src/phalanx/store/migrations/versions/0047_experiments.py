"""Parameters of runs, the words that queries find them by, and the last, least and most value of metrics."""

import json
from typing import Any

import sqlalchemy as sa

from alembic import op
from phalanx.store.schema.metric_summaries import BEGIN, Place, summarize_page

revision = "0047"
down_revision = "0044b"
branch_labels = None
depends_on = None

_PAGE = 500


def _bytewise(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "run_params",
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", _bytewise(200), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("value", _bytewise(500), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("number", sa.Float()),
        sa.Column("counts", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "name", "source", name="pk_run_params"),
    )
    op.create_index("ix_run_params_name_number_job", "run_params", ["name", "number", "job"])
    op.create_table(
        "run_terms",
        sa.Column("job", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("value", _bytewise(500), nullable=False),
        sa.PrimaryKeyConstraint("job", "kind", "value", name="pk_run_terms"),
    )
    op.create_index("ix_run_terms_kind_value_job", "run_terms", ["kind", "value", "job"])
    for name in ("last_value", "min_value", "max_value"):
        op.add_column("metric_series", sa.Column(name, sa.Float()))
    op.create_index("ix_metric_series_name_rank_job", "metric_series", ["name", "rank", "job"])
    after: int | None = 0
    while after is not None:
        after = _words_of_jobs(after)
    place: Place | None = BEGIN
    while place is not None:
        place = summarize_page(op.get_bind(), place)


def _words_of_jobs(after: int) -> int | None:
    """Store descriptions and commits of some jobs behind a number; returns the last one, None at the end."""
    jobs = sa.table("jobs", sa.column("num"), sa.column("spec", sa.JSON), sa.column("contract", sa.JSON))
    query = sa.select(jobs).where(jobs.c.num > after).order_by(jobs.c.num).limit(_PAGE)
    rows = op.get_bind().execute(query).all()
    words = []
    for num, spec, contract in rows:
        spec, contract = _plain(spec), _plain(contract)
        if spec.get("description"):
            words.append((num, "note", str(spec["description"]).replace("\0", "")[:500]))
        commit = (contract.get("source") or {}).get("commit")
        if commit:
            words.append((num, "commit", commit))
    if words:
        terms = sa.table("run_terms", *(sa.column(name) for name in ("job", "kind", "value")))
        names = ("job", "kind", "value")
        op.get_bind().execute(
            terms.insert(), [dict(zip(names, one, strict=True)) for one in words]
        )
    return rows[-1].num if rows else None


def _plain(value: object) -> dict[str, Any]:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
