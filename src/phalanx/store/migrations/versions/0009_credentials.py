"""Tokens and sessions, the id of the database; values of secret variables of ended jobs are withheld."""

import json

import sqlalchemy as sa

from alembic import op
from phalanx.core.contract.secrecy import WITHHELD, is_secret, shown_spec
from phalanx.kit.text import random_hex

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_PAGE = 200


def upgrade() -> None:
    op.create_table(
        "credentials",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("parent", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_credentials"),
    )
    op.create_index("ix_credentials_hash", "credentials", ["hash"], unique=True)
    op.create_index("ix_credentials_parent", "credentials", ["parent"], unique=False)
    facts = op.create_table(
        "facts",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_facts"),
    )
    op.bulk_insert(facts, [{"name": "database_id", "value": random_hex(32)}])
    _withhold(op.get_bind())


def _withhold(conn: sa.Connection) -> None:
    """Jobs that have not ended keep the values: their next attempt needs them."""
    if conn.dialect.name == "sqlite":
        conn.exec_driver_sql("PRAGMA secure_delete=ON")  # old values do not stay in free pages
    page = sa.text(
        "SELECT num, spec, contract, caller_env FROM jobs"
        " WHERE num > :last AND ended_at IS NOT NULL ORDER BY num LIMIT :n"
    )
    update = sa.text(
        "UPDATE jobs SET spec = :spec, contract = :contract, caller_env = :caller_env WHERE num = :num"
    )
    last = -1
    while rows := conn.execute(page, {"last": last, "n": _PAGE}).all():
        last = rows[-1].num
        for row in rows:
            read = [
                json.loads(one) if isinstance(one, str) else one
                for one in (row.spec, row.contract, row.caller_env)
            ]
            spec, contract, caller_env = read
            kept = [
                shown_spec(spec),
                None if contract is None else shown_spec(contract),
                None if caller_env is None else _hidden(caller_env),
            ]
            if kept != read:
                names = ("spec", "contract", "caller_env")
                values = (None if one is None else json.dumps(one) for one in kept)
                conn.execute(update, {"num": row.num, **dict(zip(names, values, strict=True))})


def _hidden(env: dict[str, str]) -> dict[str, str]:
    return {
        name: WITHHELD if is_secret(name, str(value)) else value for name, value in env.items()
    }


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward")
