"""A narrow table that listings of jobs read, in the place of an index with every column."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0034"
branch_labels = None
depends_on = None

_BATCH = 1000
_SAME = (
    *("num", "state", "project", "owner", "name", "framework", "kind", "slot_type", "priority"),
    *("num_slots", "restarts", "submitted_at", "started_at", "ended_at", "study", "array"),
)
_STEADY = (
    *("name", "project", "owner", "framework", "slot_type", "image", "priority", "num_slots"),
    *("num_nodes", "submitted_at"),
)


def _word(name: str, length: int = 128) -> sa.Column[str]:
    bytewise = sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    return sa.Column(name, bytewise, nullable=False, server_default="")


def _whole(name: str, kind: Any = sa.Integer) -> sa.Column[Any]:
    return sa.Column(name, kind(), nullable=False, server_default=sa.text("0"))


def upgrade() -> None:
    words = {"state": 16, "reason": 32, "pending": 32, "cause": 32, "project": 128, "owner": 128}
    words |= {"name": 256, "framework": 32, "kind": 16, "pool": 128, "slot_type": 128}
    words |= {"image": 512, "metric": 256, "goal": 16}
    table = op.create_table(
        "job_listing",
        sa.Column(
            "num",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("submitted_at", sa.BigInteger, nullable=False),
        _whole("slot_seconds", sa.Float),
        _whole("nano_usd", sa.BigInteger),
        *(_whole(name) for name in ("priority", "num_slots", "num_nodes", "restarts")),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        *(sa.Column(name, sa.Float) for name in ("queue_s", "duration_s", "best")),
        sa.Column("study", sa.BigInteger),
        sa.Column("array", sa.BigInteger),
        *(_word(name, length) for name, length in words.items()),
        postgresql_with={"fillfactor": 80, "parallel_workers": 0},
    )
    _fill(op.get_bind(), table)
    for name in _STEADY:
        op.create_index(f"ix_job_listing_{name}_num", "job_listing", [name, "num"])
    op.drop_index("ix_jobs_listing", "jobs")


def _fill(conn: sa.Connection, table: sa.Table) -> None:
    """Write the rows of the jobs that are stored."""
    for rows in _pages(conn):
        nums = {"nums": [row["num"] for row in rows]}
        query = "SELECT job, SUM(nano_usd) FROM cost_rows WHERE job IN :nums GROUP BY job"
        spent = _by_job(conn, query, nums)
        query = "SELECT job, value FROM trials WHERE job IN :nums"
        values = _by_job(conn, query, nums)
        conn.execute(table.insert(), [_row(conn, row, spent, values) for row in rows])


def _pages(conn: sa.Connection) -> Iterator[Sequence[Mapping[Any, Any]]]:
    more = ("pending_code", "reason_code", "pool", "attained_slot_s")
    read = ("spec", "contract", "snapshot")
    # Quoted: `array` is a word of SQL.
    names = [f'"{one}"' for one in (*_SAME, *more, *read)]
    query = sa.text(
        f"SELECT {', '.join(names)} FROM jobs WHERE num > :after ORDER BY num LIMIT {_BATCH}"
    )
    after = 0
    while rows := list(conn.execute(query, {"after": after}).mappings()):
        yield rows
        after = rows[-1]["num"]


def _by_job(conn: sa.Connection, query: str, values: dict[str, Any]) -> dict[int, Any]:
    said = sa.text(query).bindparams(sa.bindparam("nums", expanding=True))
    found: list[Any] = list(conn.execute(said, values))
    return {job: one for job, one in found}


def _row(
    conn: sa.Connection,
    row: Mapping[Any, Any],
    spent: Mapping[int, int],
    values: Mapping[int, float],
) -> dict[str, Any]:
    spec, contract = _read(row["spec"]), _read(row["contract"])
    snapshot = _read(row["snapshot"])
    policy = snapshot.get("policy") or snapshot.get("terms") or {}
    shapes = [policy.get("shape") or {}, *(policy.get("roles") or ())]
    metric, goal, best = _compared(conn, row["num"], spec, contract, values)
    started, ended = row["started_at"], row["ended_at"]
    over = started is not None and ended is not None
    waited_s = snapshot.get("waited_s", 0.0) if snapshot.get("attempts") else None
    return {
        **{name: row[name] for name in _SAME},
        "reason": row["reason_code"],
        "pending": row["pending_code"] or "" if row["state"] == "queued" else "",
        "cause": (snapshot.get("last_failure") or {}).get("cause") or "",
        "pool": row["pool"] or "",
        "image": str(spec.get("image") or "")[:512],
        "num_nodes": sum(int(one.get("nodes") or 0) for one in shapes),
        "queue_s": waited_s,
        "duration_s": (ended - started) / 1_000_000 if over else None,
        "slot_seconds": row["attained_slot_s"],
        "nano_usd": int(spent.get(row["num"], 0)),
        "metric": metric,
        "goal": goal,
        "best": best,
    }


def _compared(
    conn: sa.Connection,
    num: int,
    spec: dict[str, Any],
    contract: dict[str, Any],
    values: Mapping[int, float],
) -> tuple[str, str, float | None]:
    """The metric that a job is compared by, its goal, and the best value that is stored."""
    trial = contract.get("trial") or {}
    if trial.get("study") is not None and trial.get("objective"):
        return str(trial["objective"])[:256], "", values.get(num)
    best = ((spec.get("checkpoint") or {}).get("keep") or {}).get("best")
    if not best:
        return "", "", None
    name, goal = str(best["metric"])[:256], str(best.get("mode") or "max")
    query = sa.text("SELECT metrics FROM checkpoints WHERE job = :num AND state <> 'quarantined'")
    metrics = [_read(one) for one in conn.execute(query, {"num": num}).scalars()]
    known = [one[name] for one in metrics if isinstance(one.get(name), int | float)]
    return name, goal, (min if goal == "min" else max)(known, default=None)


def _read(value: object) -> dict[str, Any]:
    """A JSON column: text in SQLite, a value in PostgreSQL."""
    found = json.loads(value) if isinstance(value, str | bytes) else value
    return found or {}  # type: ignore[return-value]


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
