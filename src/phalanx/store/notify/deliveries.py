"""Messages to receivers as an outbox: open ones with the time of the next try, sent and dead ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import delete, func, select

from phalanx.errors import NotFound
from phalanx.store.database import Tx, columns_of, raise_counter, read, take_numbers
from phalanx.store.schema.notify import deliveries, gone_receivers
from phalanx.store.tables import counters

DELIVERIES = "deliveries"
"""The notification topic of new messages."""
_NUMBER, _PLACE = "delivery", "notify_feed"
_HERE = deliveries.c


class DeliveryState(StrEnum):
    """What became of a message."""

    OPEN = "open"  # to be tried at its due time
    SENT = "sent"  # the receiver took it
    DEAD = "dead"  # given up; it can be sent again by hand


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one receiver."""

    num: int  # in the order of making
    id: str  # stable over all tries
    receiver: str  # name in the settings
    kind: str  # alerts, digest, test, or job. with the state of a job
    state: str  # DeliveryState
    due_at: int  # µs UTC of the next try
    tries: int  # that were made
    made_at: int  # µs UTC
    done_at: int | None  # when it was sent or given up
    error: str  # of the last try; empty: none
    body: str  # JSON, as it is signed


def add(tx: Tx, fresh: Sequence[Mapping[str, str]], now: int) -> None:
    """Store new messages, each with id, receiver, kind and body, due now."""
    if not fresh:
        return
    first = take_numbers(tx, _NUMBER, len(fresh))
    rows = [
        Delivery(
            first + at,
            one["id"],
            one["receiver"],
            one["kind"],
            DeliveryState.OPEN.value,
            now,
            0,
            now,
            None,
            "",
            one["body"],
        )
        for at, one in enumerate(fresh)
    ]
    tx.conn.execute(deliveries.insert(), [columns_of(one) for one in rows])
    tx.touched.topics.add(DELIVERIES)


def ids_of(tx: Tx, kind: str) -> set[str]:
    """The ids of all stored messages of a kind."""
    return set(tx.conn.execute(select(_HERE.id).where(_HERE.kind == kind)).scalars())


def due(tx: Tx, now: int, limit: int) -> list[Delivery]:
    """Open messages that are due, the oldest first."""
    query = select(deliveries).where(_HERE.state == DeliveryState.OPEN.value, _HERE.due_at <= now)
    return read(tx, Delivery, query.order_by(_HERE.due_at, _HERE.num).limit(limit))


def next_due(tx: Tx) -> int | None:
    """When the next open message is due."""
    query = select(func.min(_HERE.due_at)).where(_HERE.state == DeliveryState.OPEN.value)
    found = tx.conn.execute(query).scalar()
    return None if found is None else int(found)


def put(tx: Tx, one: Delivery) -> None:
    """Write the result of a try."""
    tx.conn.execute(deliveries.update().where(_HERE.num == one.num).values(**columns_of(one)))


def load(tx: Tx, num: int) -> Delivery:
    """One message. Raises NotFound."""
    found = read(tx, Delivery, select(deliveries).where(_HERE.num == num))
    if not found:
        raise NotFound(f"there is no message {num}", "`phalanx alerts deliveries` lists them")
    return found[0]


def newest(tx: Tx, states: Collection[DeliveryState], limit: int) -> list[Delivery]:
    """The newest messages in some states."""
    query = select(deliveries).where(_HERE.state.in_([one.value for one in states]))
    return read(tx, Delivery, query.order_by(_HERE.num.desc()).limit(limit))


def drop_old(tx: Tx, before: int) -> None:
    """Delete the messages that were done before a time."""
    gone = _HERE.state != DeliveryState.OPEN.value, _HERE.done_at < before
    tx.conn.execute(delete(deliveries).where(*gone))


def gone(tx: Tx) -> dict[str, tuple[int, str]]:
    """Receivers that said that they are gone: when, and why."""
    query = select(gone_receivers)
    return {row.name: (row.at, row.message) for row in tx.conn.execute(query)}


def set_gone(tx: Tx, name: str, now: int, message: str) -> None:
    """Send nothing to a receiver any more."""
    set_back(tx, name)
    tx.conn.execute(gone_receivers.insert(), {"name": name, "at": now, "message": message})


def set_back(tx: Tx, name: str) -> None:
    """Send to a receiver again."""
    tx.conn.execute(delete(gone_receivers).where(gone_receivers.c.name == name))


def feed_place(tx: Tx) -> int:
    """The number of the last event of jobs that messages were made of; 0: none yet."""
    query = select(counters.c.value).where(counters.c.name == _PLACE)
    return int(tx.conn.execute(query).scalar() or 0)


def set_feed_place(tx: Tx, feed: int) -> None:
    """Set the same."""
    raise_counter(tx, _PLACE, feed)
