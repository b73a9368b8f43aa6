"""Triggers with which the database itself refuses to change or remove rows of the audit log.

They hold for every program that uses the database, and for a mistake in this one.
"""

from __future__ import annotations

from sqlalchemy import Connection

_SAID = "the audit log is append-only"
_SQLITE = (
    "CREATE TRIGGER audit_log_no_update BEFORE UPDATE ON audit_log"
    f" BEGIN SELECT RAISE(ABORT, '{_SAID}'); END",
    "CREATE TRIGGER audit_log_no_delete BEFORE DELETE ON audit_log"
    f" BEGIN SELECT RAISE(ABORT, '{_SAID}'); END",
)
_POSTGRESQL = (
    "CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS"
    f" $$ BEGIN RAISE EXCEPTION '{_SAID}'; END $$",
    "CREATE TRIGGER audit_log_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log"
    " FOR EACH STATEMENT EXECUTE FUNCTION audit_log_refuse()",
)


def protect_audit_log(conn: Connection) -> None:
    """Create the triggers, once the table is there."""
    for statement in _SQLITE if conn.dialect.name == "sqlite" else _POSTGRESQL:
        conn.exec_driver_sql(statement)
