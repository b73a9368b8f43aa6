"""Elements of arrays that wait for their turn: as many as the array may have under way go before them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.tables import array_turns

_HERE = array_turns.c


def add(tx: Tx, waiting: Sequence[tuple[int, int]]) -> None:
    """Store that elements wait: (array, job) each."""
    if waiting:
        rows = [{"array": array, "job": job} for array, job in waiting]
        tx.conn.execute(array_turns.insert(), rows)


def remove(tx: Tx, array: int, nums: Sequence[int]) -> None:
    """Remove elements that have ended before their turn."""
    tx.conn.execute(array_turns.delete().where(_HERE.array == array, _HERE.job.in_(nums)))


def take(tx: Tx, array: int, count: int) -> list[int]:
    """Remove and return the next `count` elements that wait, or fewer."""
    # Two transactions must not take the same one: the lock of the first element orders them.
    jobs.version(tx, array)
    query = select(_HERE.job).where(_HERE.array == array).order_by(_HERE.job).limit(count)
    found = list(tx.conn.execute(query).scalars())
    if found:
        remove(tx, array, found)
    return found
