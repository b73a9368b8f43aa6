"""Open a PostgreSQL database, and say in one sentence why that is not possible.

No message names the password: a URL that is quoted in one has it replaced.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from phalanx.errors import (
    NotSupported,
    ServerError,
    StoreError,
    StoreUnavailable,
    UserError,
)

LOCK_TIMEOUT_S = 8.0
"""How long a statement waits for a lock."""
IDLE_TIMEOUT_S = 4.0
"""How long a transaction may rest: then the server ends it, with its locks.

A process that was stopped in the middle of one keeps all others from writing: all of them take numbers from
the same rows. Shorter than the lease of the leader, so that nothing of its last transaction is left then.
"""
_CONNECT_S = 5
CONTROL_PLANE_LOCK = 0x7068616C616E79
"""The key of an advisory lock for control planes that start; that of migrations is another."""
_OLDEST = 14
_DRIVER = "postgresql+psycopg"
_FORM = "write postgresql://USER@HOST:PORT/DATABASE"
# What the server or the driver says, and what to do about it.
_REMEDIES = (
    ("password authentication failed", "check the password of that user"),
    ("no password supplied", "put the password into the URL's file, or into ~/.pgpass"),
    ("no pg_hba.conf entry", "the server must allow this host and user in its pg_hba.conf"),
    ("does not exist", "make it: createdb DATABASE, createuser USER"),
    ("failed to resolve host", "check the name of the server"),
    ("could not translate host name", "check the name of the server"),
    ("too many", "raise max_connections of the server"),
    ("remaining connection slots", "raise max_connections of the server"),
)


def engine(url: str, to_json: Any, pool: dict[str, Any]) -> Engine:
    """The engine of a database at a URL. Raises UserError for a wrong URL, ServerError without a driver."""
    made = create_engine(
        _checked(url),
        pool_pre_ping=True,
        json_serializer=to_json,
        hide_parameters=True,
        connect_args={"connect_timeout": _CONNECT_S, "application_name": f"phalanx {os.getpid()}"},
        **pool,
    )

    @event.listens_for(made, "connect")
    def _connected(raw: Any, record: Any) -> None:
        # Not as an option of the connection: that would replace the options of the URL.
        with raw.cursor() as cursor:
            cursor.execute(
                f"SET lock_timeout = {round(LOCK_TIMEOUT_S * 1000)}; "
                f"SET idle_in_transaction_session_timeout = {round(IDLE_TIMEOUT_S * 1000)}"
            )
        raw.commit()

    return made


def _checked(url: str) -> Any:
    try:
        found = make_url(url)
    except ArgumentError:
        raise UserError("the database URL cannot be read", _FORM) from None
    if found.get_backend_name() not in ("postgresql", "postgres"):
        raise UserError(f"a database of kind {found.drivername!r} is not supported", _FORM)
    if not found.database:
        raise UserError("the database URL names no database", _FORM)
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        said = f"the driver of PostgreSQL cannot be loaded: {error}"
        raise ServerError(said, "pip install 'phalanx[server]'") from error
    return found.set(drivername=_DRIVER)


def without_password(url: str) -> str:
    """The URL for people: its password, also one among the parameters, is left out. Raises UserError."""
    found = _checked(url).set(drivername="postgresql")._replace(password=None)
    return str(found.difference_update_query(["password"]).render_as_string())


def check(opened: Engine) -> None:
    """Connect, and refuse a server that is too old or keeps text in another encoding than UTF-8.

    Raises StoreUnavailable with the cause, NotSupported.
    """
    place = without_password(opened.url.render_as_string(hide_password=False))
    try:
        with opened.connect() as conn:
            version = int(conn.exec_driver_sql("SHOW server_version_num").scalar_one()) // 10_000
            encoding = conn.exec_driver_sql("SHOW server_encoding").scalar_one()
    except OperationalError as error:
        raise unreachable(place, str(error.orig)) from None
    if version < _OLDEST:
        raise NotSupported(f"{place} is PostgreSQL {version}", f"use {_OLDEST} or later")
    if encoding != "UTF8":
        remedy = "createdb --encoding=UTF8 --template=template0 DATABASE"
        raise NotSupported(f"{place} keeps text as {encoding}", remedy)


def unreachable(place: str, said: str) -> StoreError:
    """Why a connection to `place` failed; `said` are the words of the driver."""
    line = " ".join(said.split("\n")[0].split())
    hint = next((do for part, do in _REMEDIES if part in said), "check that the server runs there")
    return StoreUnavailable(f"cannot connect to the database {place}: {line}", hint)
