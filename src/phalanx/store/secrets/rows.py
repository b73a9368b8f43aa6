"""Rows of secrets: encrypted values, or references to values of secret managers, by project and name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from phalanx.store.database import Tx, columns_of, read, take_numbers
from phalanx.store.secrets.envelope import Sealed, WrappedKey
from phalanx.store.tables import secrets

WHOLE = ""
"""The project of a secret of the whole platform."""


@dataclass(frozen=True, slots=True)
class SecretRow:
    """One secret: its value encrypted, or a reference to it."""

    project: str  # WHOLE: that of the whole platform
    name: str  # of the variable
    version: int  # 1 for the first value
    key_id: str  # of the master key
    wrapped_key: bytes  # the data key, encrypted by the master key
    sealed: bytes  # the value, encrypted by the data key
    set_at: int  # µs UTC
    set_by: str  # id of the principal
    source: str = ""  # reference to a value in a secret manager; empty: the value is `sealed`

    @property
    def envelope(self) -> Sealed:
        """The encrypted value."""
        return Sealed(WrappedKey(self.key_id, self.wrapped_key), self.sealed)


def lock(tx: Tx) -> None:
    """Wait for other changes of secrets: none encrypts with a key that another one retires."""
    take_numbers(tx, "secret")


def find(tx: Tx, project: str, name: str) -> SecretRow | None:
    """One secret."""
    here = secrets.c
    query = select(secrets).where(here.project == project, here.name == name)
    found = read(tx, SecretRow, query)
    return found[0] if found else None


def of_projects(tx: Tx, projects: Iterable[str]) -> list[SecretRow]:
    """All secrets of some projects, in the order of projects and names."""
    here = secrets.c
    query = select(secrets).where(here.project.in_(list(projects)))
    return read(tx, SecretRow, query.order_by(here.project, here.name))


def every(tx: Tx) -> list[SecretRow]:
    """All secrets."""
    return read(tx, SecretRow, select(secrets).order_by(secrets.c.project, secrets.c.name))


def put(tx: Tx, row: SecretRow) -> None:
    """Store a secret in the place of an earlier value."""
    remove(tx, row.project, row.name)
    tx.conn.execute(secrets.insert(), columns_of(row))


def remove(tx: Tx, project: str, name: str) -> bool:
    """Delete a secret; returns whether there was one."""
    here = secrets.c
    gone = tx.conn.execute(secrets.delete().where(here.project == project, here.name == name))
    return gone.rowcount > 0
