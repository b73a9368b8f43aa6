"""Append to the audit log and read it. No row is changed or removed: the database refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from phalanx.core.contract.secrecy import WITHHELD, is_secret
from phalanx.kit.text import shorten
from phalanx.store.database import Tx, columns_of, read, take_numbers
from phalanx.store.tables import audit_log

CHANGED, READ, DENIED = "changed", "read", "denied"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One row: what did what, from where, and what was before and after."""

    at: int  # µs UTC
    actor: str  # id of a principal; of a supervisor: `supervisor`; empty: unknown
    credential: str  # id of the token, never its value
    address: str  # of the client, as the server sees it
    action: str  # method and path of the route, with its variables
    target: str  # the path that was requested
    outcome: str  # CHANGED, READ or DENIED
    changes: Sequence[Any] = ()  # of what was changed: what, before, after
    id: int = 0  # in the order of the commits


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter of the audit log; an empty field matches every row."""

    actor: str | None = None
    action: str | None = None  # a part of it
    target: str | None = None  # the beginning of it
    outcome: str | None = None
    since: int | None = None  # µs UTC
    until: int | None = None  # µs UTC


@dataclass(slots=True)
class AuditedRequest:
    """The request that is being served in this context."""

    entry: AuditEntry
    written: list[int] = field(default_factory=list)  # ids of the rows that its transactions wrote


_CURRENT: ContextVar[AuditedRequest | None] = ContextVar("phalanx_audited_request", default=None)


@contextmanager
def audited(request: AuditedRequest) -> Iterator[None]:
    """Have each write transaction of this context, and of its threads, append a row of the request."""
    token = _CURRENT.set(request)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def before_commit(tx: Tx) -> None:
    """Append the row of the current request to its transaction: both are stored, or neither is."""
    request = _CURRENT.get()
    if request is not None:
        request.written.append(append(tx, request.entry, tx.touched.changes))


def append(tx: Tx, entry: AuditEntry, changes: Sequence[Any] = ()) -> int:
    """Append a row; returns its id."""
    id = take_numbers(tx, "audit")
    values = {**columns_of(entry), "id": id, "changes": list(changes)}
    tx.conn.execute(audit_log.insert(), values)
    return id


def describe(tx: Tx, what: str, before: object, after: object) -> None:
    """Say what the transaction changes, as values for JSON; None: it was not, or is not there.

    Nothing is kept outside of requests. Values of secret variables are withheld.
    """
    if is_on() and len(tx.touched.changes) < _MAX_CHANGES:
        change = {"what": what, "before": _shown(before), "after": _shown(after)}
        tx.touched.changes.append(change)


def is_on() -> bool:
    """Whether a request is being served in this context, of which changes are audited."""
    return _CURRENT.get() is not None


_MAX_CHANGES = 100
_MAX_TEXT = 2000
_MAX_ITEMS = 200


def _shown(value: Any, name: str = "") -> Any:
    """A value as JSON, without secrets, and with limits."""
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {str(key): _shown(one, str(key)) for key, one in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(one, name) for one in list(value)[:_MAX_ITEMS]]
    if value is None or isinstance(value, bool | int | float):
        return value
    return WITHHELD if is_secret(name, str(value)) else shorten(str(value), _MAX_TEXT)


def page(tx: Tx, wanted: AuditFilter, *, before: int | None, limit: int) -> list[AuditEntry]:
    """One page of rows, newest first; `before` is the last id of the previous page."""
    here = audit_log.c
    query = select(audit_log).order_by(here.id.desc()).limit(limit)
    if wanted.actor is not None:
        query = query.where(here.actor == wanted.actor)
    if wanted.outcome is not None:
        query = query.where(here.outcome == wanted.outcome)
    if wanted.action is not None:
        query = query.where(here.action.contains(wanted.action, autoescape=True))
    if wanted.target is not None:
        query = query.where(here.target.startswith(wanted.target, autoescape=True))
    if wanted.since is not None:
        query = query.where(here.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(here.at < wanted.until)
    if before is not None:
        query = query.where(here.id < before)
    return read(tx, AuditEntry, query)
