"""Named leases (owner, token, expiry): the same rows for SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from phalanx.errors import LeaseLost
from phalanx.store.database import Tx
from phalanx.store.tables import leases


@dataclass(frozen=True, slots=True)
class Lease:
    """Held by `owner` until `expires_at`; `token` is fresh for every holder."""

    name: str
    owner: str
    token: str
    expires_at: int


def acquire(tx: Tx, wanted: Lease, now: int) -> bool:
    """Take a lease that is free or has run out; False while somebody else holds it."""
    query = select(leases).where(leases.c.name == wanted.name).with_for_update()
    row = tx.conn.execute(query).mappings().first()
    values = {
        "owner": wanted.owner, "token": wanted.token, "expires_at": wanted.expires_at
    }  # fmt: skip
    if row is None:
        tx.conn.execute(leases.insert(), {"name": wanted.name, **values})
        return True
    if row["expires_at"] > now and row["token"] != wanted.token:
        return False
    tx.conn.execute(leases.update().where(leases.c.name == wanted.name).values(**values))
    return True


def renew(tx: Tx, held: Lease, expires_at: int) -> Lease:
    """Hold on for longer. Raises LeaseLost when somebody else took it."""
    update = (
        leases.update()
        .where(leases.c.name == held.name, leases.c.token == held.token)
        .values(expires_at=expires_at)
    )
    if tx.conn.execute(update).rowcount != 1:
        raise LeaseLost(f"the lease {held.name!r} was taken over")
    return Lease(held.name, held.owner, held.token, expires_at)


def release(tx: Tx, held: Lease) -> None:
    """Give it back; nothing happens when it was lost already."""
    tx.conn.execute(leases.delete().where(leases.c.name == held.name, leases.c.token == held.token))
