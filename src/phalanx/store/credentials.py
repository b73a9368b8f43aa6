"""Read and write tokens and sessions. Only hashes are stored; the values are shown once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select, text

from phalanx.store.database import Tx, columns_of, read
from phalanx.store.tables import credentials

TOKEN = "token"
SESSION = "session"
TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Credential:
    """One token, one session of a browser, or one ticket of a link that has been used.

    `parent` is the token that opened the session.
    """

    id: str  # random, shown in lists
    kind: str  # TOKEN, SESSION or TICKET
    name: str  # chosen by its creator
    scopes: Sequence[str]  # values of core.contract.access.Scope
    hash: str  # SHA-256 of the value
    created_at: int  # µs UTC
    expires_at: int | None  # µs UTC; None: never
    parent: str | None = None  # id of a token, or `admin`; None for a token
    principal: str | None = None  # id of the account; None: the user of the home


def insert(tx: Tx, one: Credential) -> None:
    """Store a new credential."""
    tx.conn.execute(credentials.insert(), {**columns_of(one), "scopes": list(one.scopes)})


def insert_once(tx: Tx, one: Credential) -> bool:
    """Store a new credential unless one with its hash is there; returns whether it was stored.

    Another transaction that stores the same one is waited for.
    """
    # An expired one is as good as none, and its hash would be taken.
    drop_expired(tx, one.created_at)
    statement = text(
        "INSERT INTO credentials (id, kind, name, scopes, hash, created_at, expires_at, parent, principal)"
        " VALUES (:id, :kind, :name, :scopes, :hash, :created_at, :expires_at, :parent, :principal)"
        " ON CONFLICT DO NOTHING"
    )
    values = {**columns_of(one), "scopes": json.dumps(list(one.scopes))}
    return bool(tx.conn.execute(statement, values).rowcount)


def find(tx: Tx, value_hash: str, kind: str, now: int) -> Credential | None:
    """The credential of a kind with this hash that has not expired."""
    here = credentials.c
    query = select(credentials).where(here.hash == value_hash, here.kind == kind, _lives(now))
    found = read(tx, Credential, query)
    return found[0] if found else None


def tokens(tx: Tx, now: int) -> list[Credential]:
    """All tokens that have not expired, oldest first."""
    here = credentials.c
    query = select(credentials).where(here.kind == TOKEN, _lives(now))
    return read(tx, Credential, query.order_by(here.created_at, here.id))


def token(tx: Tx, id: str, now: int) -> Credential | None:
    """One token by its id."""
    return next((one for one in tokens(tx, now) if one.id == id), None)


def remove(tx: Tx, id: str) -> None:
    """Delete a token or session, and the sessions that the token opened."""
    here = credentials.c
    tx.conn.execute(credentials.delete().where(or_(here.id == id, here.parent == id)))


def remove_of(tx: Tx, principal: str) -> None:
    """Delete all tokens and sessions of an account."""
    tx.conn.execute(credentials.delete().where(credentials.c.principal == principal))


def remove_sessions(tx: Tx) -> int:
    """Delete all sessions; returns their number."""
    return tx.conn.execute(credentials.delete().where(credentials.c.kind == SESSION)).rowcount


def set_end(tx: Tx, id: str, expires_at: int) -> None:
    """Change when a credential expires, in microseconds UTC."""
    tx.conn.execute(
        credentials.update().where(credentials.c.id == id).values(expires_at=expires_at)
    )


def drop_expired(tx: Tx, now: int) -> None:
    """Delete all credentials that have expired."""
    tx.conn.execute(credentials.delete().where(~_lives(now)))


def _lives(now: int) -> ColumnElement[bool]:
    return or_(credentials.c.expires_at.is_(None), credentials.c.expires_at > now)
