"""Bring a database to the schema of this release.

A fresh database is created straight from the tables; Alembic, which takes a third of a second to import,
is loaded only to upgrade an older one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, inspect, text

from phalanx.errors import StoreCorrupt
from phalanx.kit.text import random_hex
from phalanx.store.tables import counters, facts, metadata

HEAD = "0012"
COUNTERS = (
    "job",
    "feed",
    "command",
    "checkpoint",
    "metric",
    "log",
    "study",
    "study_command",
    "trial_report",
    "cost_row",
)
DATABASE_ID = "database_id"
# Any number that other programs in the same database hardly use.
_MIGRATING = 0x7068616C616E78
_FOLDER = Path(__file__).parent / "migrations"


def to_head(engine: Engine) -> None:
    """Create or upgrade. Raises StoreCorrupt for a schema that is foreign or of a later release."""
    with _alone(engine):
        stored = stored_revision(engine)
        if stored is None:
            _create(engine)
        elif stored != HEAD:
            upgrade(engine, stored)


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Exclude the other control planes that start on the same PostgreSQL at this moment."""
    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        # A lock of the session. Its wait has no limit: a migration may take minutes.
        conn.execute(text("SET lock_timeout = 0"))
        conn.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATING})
        try:
            yield
        finally:
            conn.invalidate()  # the connection ends, and the lock and the option with it


def stored_revision(engine: Engine) -> str | None:
    """The revision of the stored schema; None for an empty database."""
    with engine.connect() as conn:
        names = set(inspect(conn).get_table_names())
        if not names:
            return None
        if "alembic_version" not in names:
            raise StoreCorrupt("the database holds tables, but not those of this platform")
        return str(conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one())


def _create(engine: Engine) -> None:
    with engine.begin() as conn:
        metadata.create_all(conn, checkfirst=False)
        conn.execute(counters.insert(), [{"name": name, "value": 0} for name in COUNTERS])
        conn.execute(facts.insert(), {"name": DATABASE_ID, "value": random_hex(32)})
        conn.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)"))
        conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def upgrade(engine: Engine, stored: str | None, target: str = HEAD) -> None:
    """Run the migrations from `stored` (None: from nothing) to `target` in one transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    try:
        if stored is not None:
            ScriptDirectory.from_config(config).get_revision(stored)
        with engine.begin() as conn:
            config.attributes["connection"] = conn
            command.upgrade(config, target)
    except CommandError as error:
        raise StoreCorrupt(
            f"the database has schema {stored!r}, which this release does not know",
            "a later release wrote it: use that one",
        ) from error
