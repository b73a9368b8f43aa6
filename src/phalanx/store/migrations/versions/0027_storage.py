"""What jobs keep in stores, and its sums by day; checkpoints that are kept now begin at their commit."""

import sqlalchemy as sa

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_objects",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("store", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("from_at", sa.BigInteger(), nullable=False),
        sa.Column("to_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_stored_objects"),
    )
    for name in ("job", "from_at"):
        op.create_index(f"ix_stored_objects_{name}", "stored_objects", [name])
    kept = ["to_at", "project", "owner", "store", "from_at", "kind", "size_bytes"]
    op.create_index("ix_stored_objects_kept", "stored_objects", kept)
    op.create_table(
        "storage_days",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("store", sa.String(256), nullable=False),
        sa.Column("byte_units", sa.BigInteger(), nullable=False),
        sa.Column("byte_rest", sa.BigInteger(), nullable=False),
        sa.Column("uploaded_bytes", sa.BigInteger(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("storage_nano", sa.BigInteger(), nullable=False),
        sa.Column("transfer_nano", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "project", "owner", "store", name="pk_storage_days"),
    )
    # Ids below those of the counter: the id of a checkpoint, twice with a remainder for its copy.
    op.execute(
        "INSERT INTO stored_objects SELECT 2 * c.id, c.job, j.project, j.owner, "
        "CASE WHEN c.path LIKE '%://%' THEN 'object store' ELSE 'nodes' END, "
        "CASE WHEN c.path LIKE '%://%' THEN 'remote' ELSE 'near' END, "
        "c.path, c.size_bytes, c.created_at, NULL "
        "FROM checkpoints c JOIN jobs j ON j.num = c.job WHERE c.state = 'valid'"
    )
    op.execute(
        "INSERT INTO stored_objects SELECT 2 * c.id + 1, c.job, j.project, j.owner, "
        "'object store', 'remote', c.path, c.copy_bytes, c.copied_at, NULL "
        "FROM checkpoints c JOIN jobs j ON j.num = c.job WHERE c.state = 'valid' "
        "AND c.copy_state = 'stored' AND c.copied_at IS NOT NULL AND c.path NOT LIKE '%://%'"
    )
    _name_stores()
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    last = op.get_bind().execute(sa.text("SELECT max(id) FROM stored_objects")).scalar() or 0
    new = [{"name": "stored_object", "value": last}, {"name": "storage_settled", "value": 0}]
    op.bulk_insert(counters, new)


def _name_stores() -> None:
    """Name the object store of each job, which its spec has."""
    objects = sa.table("stored_objects", *(sa.column(name) for name in ("job", "store")))
    jobs = sa.table("jobs", sa.column("num", sa.BigInteger), sa.column("spec", sa.JSON))
    conn, remote = op.get_bind(), objects.c.store == "object store"
    nums = list(conn.execute(sa.select(objects.c.job).where(remote).distinct()).scalars())
    for num in nums:
        spec = conn.execute(sa.select(jobs.c.spec).where(jobs.c.num == num)).scalar() or {}
        name = (spec.get("checkpoint") or {}).get("store")
        if name:
            mine = remote & (objects.c.job == num)
            conn.execute(objects.update().where(mine).values(store=name[:256]))


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
