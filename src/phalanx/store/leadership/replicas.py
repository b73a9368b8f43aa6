"""The control planes that serve one PostgreSQL database, and until when each counts as alive."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from phalanx.errors import Conflict
from phalanx.store.database import Tx
from phalanx.store.engines.postgresql import CONTROL_PLANE_LOCK
from phalanx.store.leadership.leases import NOW

# Released by the end of the transaction. A release without replicas keeps this lock while it runs.
_ALONE = text("SELECT pg_advisory_xact_lock(:key)")
_DROP_DEAD = text(f"DELETE FROM replicas WHERE expires_at <= {NOW}")  # noqa: S608
_BEAT = text(
    f"UPDATE replicas SET expires_at = {NOW} + :ttl WHERE id = :id"  # noqa: S608
)
_ADD = text(
    "INSERT INTO replicas (id, name, url, version, schema, home, machine, started_at, expires_at) "  # noqa: S608
    f"VALUES (:id, :name, :url, :version, :schema, :home, :machine, :started_at, {NOW} + :ttl) "
    "ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at"
)
_LIVE = text(
    "SELECT id, name, url, version, schema, home, machine, started_at "  # noqa: S608
    f"FROM replicas WHERE expires_at > {NOW} ORDER BY started_at, id"
)
_LEAVE = text("DELETE FROM replicas WHERE id = :id")


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One control plane process that serves the database."""

    id: str  # random, new in each process
    name: str  # host and process, for people
    url: str  # at which it answers
    version: str  # its release
    schema: str  # the revision of the schema that its release was made for
    home: str  # digest of the key of its home: all replicas share one home
    machine: str  # boot of the machine that it offers slots of; empty: none
    started_at: int  # µs UTC, on its own clock


def join(tx: Tx, me: ReplicaRow, ttl_s: float) -> None:
    """Add a control plane to those of the database.

    Raises Conflict where it could not replace one that is there: another home, or slots of another machine.
    """
    try:
        tx.conn.execute(_ALONE, {"key": CONTROL_PLANE_LOCK})
    except OperationalError as error:
        if "lock timeout" not in str(error.orig):
            raise
        raise Conflict(
            "a control plane of a release without replicas uses this database",
            "stop it; running jobs continue meanwhile",
        ) from None
    tx.conn.execute(_DROP_DEAD)
    for other in live(tx):
        _check(me, other)
    values = {name: getattr(me, name) for name in ReplicaRow.__slots__}
    tx.conn.execute(_ADD, {**values, "ttl": round(ttl_s * 1e6)})


def _check(me: ReplicaRow, other: ReplicaRow) -> None:
    if other.home != me.home:
        raise Conflict(
            f"{other.name} with another home uses this database",
            "replicas share one home folder, which has their tokens, code and secrets: start with that "
            "--home, or make a database for this one",
        )
    if other.machine != me.machine:
        raise Conflict(
            f"{other.name} offers the slots of another machine, or none, and this one could not go on with "
            "its jobs",
            "replicas on several machines start with --slots 0; those with slots share one machine",
        )


def beat(tx: Tx, id: str, ttl_s: float) -> bool:
    """Extend the time of a control plane; False when others have counted it as dead: it must join again."""
    return tx.conn.execute(_BEAT, {"id": id, "ttl": round(ttl_s * 1e6)}).rowcount > 0


def live(tx: Tx) -> list[ReplicaRow]:
    """The control planes that live, the oldest first."""
    return [ReplicaRow(**row) for row in tx.conn.execute(_LIVE).mappings()]


def leave(tx: Tx, id: str) -> None:
    """Remove a control plane that ends."""
    tx.conn.execute(_LEAVE, {"id": id})
