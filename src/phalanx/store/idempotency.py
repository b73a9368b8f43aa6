"""Requests that take effect once: their keys, stored with the answer in the transaction of the effect.

A client that has lost an answer sends the same request with the same key again, and gets the first answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, text

from phalanx.errors import Conflict
from phalanx.store.database import Tx
from phalanx.store.tables import request_keys

KEPT_US = 24 * 3600 * 1_000_000
"""How long a key is known, in microseconds."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The key of a request, and a digest of what it asks for."""

    key: str
    request: str
    now: int

    @classmethod
    def of(cls, key: str | None, now: int, *request: str) -> RequestKey | None:
        """The key of a request that these texts describe; None without a key."""
        if key is None:
            return None
        digest = hashlib.sha256("\0".join(request).encode()).hexdigest()
        return cls(key, digest, now)


def earlier_answer(tx: Tx, asked: RequestKey | None) -> Any:
    """The answer to an earlier request with the same key; None when there is none.

    Raises Conflict when that request was another one.
    """
    if asked is None:
        return None
    here = request_keys.c
    query = select(here.request, here.answer).where(
        here.key == asked.key, here.created_at > asked.now - KEPT_US
    )
    row = tx.conn.execute(query).one_or_none()
    if row is None:
        return None
    if row.request != asked.request:
        raise Conflict(
            "the idempotency key belongs to another request", "use a new key for each request"
        )
    return row.answer


def once(tx: Tx, asked: RequestKey | None, work: Callable[[], Any]) -> Any:
    """The plain data that `work` returns, or the answer to an earlier request with the same key.

    Raises Conflict when that request was another one, and what `work` raises; the key is then free.
    """
    if asked is None:
        return work()
    here = request_keys.c
    tx.conn.execute(request_keys.delete().where(here.created_at <= asked.now - KEPT_US))
    # First of all: another transaction with this key waits here for the end of this one.
    insert = text(
        "INSERT INTO request_keys (key, request, created_at) VALUES (:key, :request, :now) "
        "ON CONFLICT DO NOTHING"
    )
    values = {"key": asked.key, "request": asked.request, "now": asked.now}
    if tx.conn.execute(insert, values).rowcount == 0:
        return earlier_answer(tx, asked)
    answer = work()
    tx.conn.execute(request_keys.update().where(here.key == asked.key).values(answer=answer))
    return answer
