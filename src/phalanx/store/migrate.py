"""Bring a database to the schema of this release.

A fresh database is created straight from the tables; Alembic, which takes a third of a second to import,
is loaded only to upgrade an older one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, select, text

from phalanx.errors import Conflict, NotSupported, StoreCorrupt
from phalanx.kit.text import random_hex
from phalanx.store.engines.append_only import protect_audit_log
from phalanx.store.schema import metadata
from phalanx.store.schema.metric_points import convert
from phalanx.store.tables import counters, facts

HEAD = "0048b"
OLDEST_USER = "0048b"
"""The oldest schema that a release may have been made for and still use this one, beside newer replicas.

A migration that only adds leaves it; one that takes or renames something sets it to its own revision.
"""
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
    "audit",
    "secret",
    "cost_folded",
    "stored_object",
    "storage_settled",
    "cost_anomaly",
    "cost_judged",
    "bill",
    "alert_silence",
    "delivery",
    "notify_feed",
)
DATABASE_ID = "database_id"
_OLDEST_USER = "oldest_user"
_METRIC_COLUMNS = "0041"
# Any number that other programs in the same database hardly use.
_MIGRATING = 0x7068616C616E78
_FOLDER = Path(__file__).parent / "migrations"
_READ_OLDEST = select(facts.c.value).where(facts.c.name == _OLDEST_USER)
_OLD_REPLICAS = text(
    "SELECT name FROM replicas WHERE schema < :oldest "
    "AND expires_at > extract(epoch FROM clock_timestamp()) * 1000000"
)


def to_head(engine: Engine) -> None:
    """Create or upgrade. Raises StoreCorrupt for a schema that is foreign or of a later release."""
    with _alone(engine):
        stored = stored_revision(engine)
        if stored is None:
            _create(engine)
        elif stored != HEAD and not _is_shared_with_later(engine, stored):
            _refuse_old_replicas(engine)
            _upgrade_to_head(engine, stored)


def _upgrade_to_head(engine: Engine, stored: str) -> None:
    """Upgrade with one stop: metrics of earlier releases are many, and move in many transactions."""
    with engine.connect() as conn:
        names = set(inspect(conn).get_table_names())
    if "metric_series" not in names:
        upgrade(engine, stored, _METRIC_COLUMNS)
        stored, names = _METRIC_COLUMNS, names | {"metric_points"}
    if "metric_points" in names:
        convert(engine)
    upgrade(engine, stored)


def _is_shared_with_later(engine: Engine, stored: str) -> bool:
    """Whether a later release has changed the schema in a way that leaves this one usable.

    Only on PostgreSQL, where replicas of two releases serve one database. Raises NotSupported where the
    later release has ended that.
    """
    if engine.dialect.name != "postgresql" or _is_known(stored):
        return False
    with engine.connect() as conn:
        check_usable(conn)
        return conn.execute(_READ_OLDEST).first() is not None


def _is_known(revision: str) -> bool:
    """Whether this release has the migration. Numbers do not say so: some came in another order."""
    return revision == HEAD or any((_FOLDER / "versions").glob(f"{revision}_*.py"))


def check_usable(conn: Connection) -> None:
    """Raise NotSupported when a later release has made the schema unusable for this one."""
    oldest = conn.execute(_READ_OLDEST).scalar()
    if oldest is not None and not _is_known(str(oldest)):
        raise NotSupported(
            f"the database has been upgraded: it needs a release for schema {oldest} or later, and this "
            f"one was made for {HEAD}",
            "start the later release here as well",
        )


def _refuse_old_replicas(engine: Engine) -> None:
    """Raise Conflict while replicas live that could not go on after the upgrade."""
    if engine.dialect.name != "postgresql" or "replicas" not in inspect(engine).get_table_names():
        return
    with engine.connect() as conn:
        old = conn.execute(_OLD_REPLICAS, {"oldest": OLDEST_USER}).scalars().all()
    if old:
        raise Conflict(
            f"the upgrade would end {', '.join(old)}: of a release that cannot use the new schema",
            "stop them first; running jobs continue meanwhile",
        )


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
        protect_audit_log(conn)
        conn.execute(counters.insert(), [{"name": name, "value": 0} for name in COUNTERS])
        conn.execute(facts.insert(), {"name": DATABASE_ID, "value": random_hex(32)})
        _note_oldest(conn)
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
            if engine.dialect.name == "sqlite":
                conn.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = conn
            command.upgrade(config, target)
            if target == HEAD:
                _note_oldest(conn)
    except CommandError as error:
        raise StoreCorrupt(
            f"the database has schema {stored!r}, which this release does not know",
            "a later release wrote it: use that one",
        ) from error


def _note_oldest(conn: Connection) -> None:
    """Store which releases may use this schema."""
    conn.execute(facts.delete().where(facts.c.name == _OLDEST_USER))
    conn.execute(facts.insert(), {"name": _OLDEST_USER, "value": OLDEST_USER})
