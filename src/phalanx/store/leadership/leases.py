"""The lease of the leader, with a fencing token.

A renewal and the writes of the owner do not wait for one another: a write locks the key of the row, and a
renewal changes no key. A new owner locks the whole row, and so waits for the writes that are under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from phalanx.errors import LeaseLost
from phalanx.store.database import Tx

LOOPS = "loops"
"""The lease of the process that runs the loops."""
TOPIC = "leadership"
"""Topic of a lease that was given up."""
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The clock of the database, in microseconds UTC."""
_ADD = text(
    "INSERT INTO leases (name, token, owner, expires_at) VALUES (:name, 0, '', 0) ON CONFLICT DO NOTHING"
)
# A lease that lasts much longer than one can be given was given before the clock was set back.
_OVER = f"(expires_at <= {NOW} OR expires_at > {NOW} + 2 * CAST(:ttl AS bigint))"
_IS_OVER = text(f"SELECT {_OVER} FROM leases WHERE name = :name")  # noqa: S608
_READ = text(f"SELECT {_OVER} AS is_over FROM leases WHERE name = :name FOR UPDATE")  # noqa: S608
_TAKE = text(
    f"UPDATE leases SET token = token + 1, owner = :owner, expires_at = {NOW} + :ttl "  # noqa: S608
    "WHERE name = :name RETURNING token"
)
_RENEW = text(
    f"UPDATE leases SET expires_at = {NOW} + :ttl "  # noqa: S608
    f"WHERE name = :name AND token = :token AND expires_at > {NOW}"
)
_CHECK = text(
    "SELECT 1 FROM leases WHERE name = :name AND token = :token "  # noqa: S608
    f"AND expires_at > {NOW} FOR KEY SHARE"
)
_LEAVE = text("UPDATE leases SET expires_at = 0 WHERE name = :name AND token = :token")
_HOLDER = text(
    "SELECT token, owner, expires_at FROM leases "  # noqa: S608
    f"WHERE name = :name AND expires_at > {NOW}"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was taken; `token` is higher than that of every owner before."""

    name: str
    token: int


@dataclass(frozen=True, slots=True)
class Holder:
    """The present owner of a lease, and when it runs out on the clock of the database, µs UTC."""

    token: int
    owner: str
    expires_at: int


def take(tx: Tx, name: str, owner: str, ttl_s: float) -> Lease | None:
    """Take a lease that is free or has run out; None while another owner has it."""
    values = {"name": name, "ttl": round(ttl_s * 1e6)}
    is_over = tx.conn.execute(_IS_OVER, values).scalar()
    if is_over is None:
        tx.conn.execute(_ADD, {"name": name})
    elif not is_over:
        return None  # without a lock, which would wait for the writes of the owner
    if not tx.conn.execute(_READ, values).one().is_over:
        return None
    return Lease(name, int(tx.conn.execute(_TAKE, {**values, "owner": owner}).scalar_one()))


def renew(tx: Tx, lease: Lease, ttl_s: float) -> None:
    """Extend a lease. Raises LeaseLost when it has run out, even if nothing has taken it since."""
    values = {"name": lease.name, "token": lease.token, "ttl": round(ttl_s * 1e6)}
    if tx.conn.execute(_RENEW, values).rowcount == 0:
        raise _lost(lease)


def check(tx: Tx, lease: Lease) -> None:
    """Let this transaction commit only under the lease. Raises LeaseLost.

    The lock makes the next owner wait for the end of this transaction.
    """
    values = {"name": lease.name, "token": lease.token}
    if tx.conn.execute(_CHECK, values).first() is None:
        raise _lost(lease)


def give_up(tx: Tx, lease: Lease) -> None:
    """End a lease, so that another process need not wait for its time."""
    tx.conn.execute(_LEAVE, {"name": lease.name, "token": lease.token})
    tx.touched.topics.add(TOPIC)


def holder(tx: Tx, name: str) -> Holder | None:
    """The owner of a lease; None while it is free."""
    row = tx.conn.execute(_HOLDER, {"name": name}).one_or_none()
    return None if row is None else Holder(int(row.token), str(row.owner), int(row.expires_at))


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"lease {lease.name} with token {lease.token} has run out or has a new owner")
