"""Rows of the audit log for the requests that the gate sees.

A change is written in its own transaction (`store.tenancy.audit`). Reads that are audited, and requests
that were denied, have rows of their own, and limits: neither can fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from phalanx.core.tenancy.audit_limits import AuditLimits
from phalanx.core.tenancy.principals import Caller
from phalanx.errors import PlatformError
from phalanx.kit.text import replace_unencodable, shorten
from phalanx.server.access import AccessTable, Matched, Of
from phalanx.server.context import CALLER_KEY, Context, in_thread
from phalanx.services.tenancy.audit import record
from phalanx.store.tenancy.audit import CHANGED, DENIED, READ, AuditedRequest, AuditEntry, audited

_LOG = logging.getLogger(__name__)
_SAFE = frozenset({"GET", "HEAD"})
_SIGN_INS = frozenset({"/login", "/login/callback", "/api/v1/login/finish"})


class AuditTrail:
    """Writes what requests did. One per application."""

    def __init__(self, context: Context, table: AccessTable) -> None:
        self._context = context
        self._table = table
        self._limits = AuditLimits()

    @contextmanager
    def changes(self, scope: Scope) -> Iterator[None]:
        """Have the transactions of a request that may change something append its rows."""
        needed = self._table.find(scope["method"], scope["path"])
        signs_in = needed.route in _SIGN_INS
        if not signs_in and (scope["method"] in _SAFE or not needed.access.needs_caller):
            yield
            return
        with audited(AuditedRequest(self._entry(scope, needed, CHANGED))):
            yield

    async def read(self, scope: Scope) -> None:
        """Write a row for a read that is audited, once a minute for the same thing."""
        needed = self._table.find(scope["method"], scope["path"])
        if not needed.access.audited:
            return
        entry = self._entry(scope, needed, READ)
        key = (entry.credential, entry.address, entry.action, entry.target)
        if self._limits.permits_read(key, self._context.clock.now()):
            await self._record(entry)

    async def denied(self, scope: Scope) -> None:
        """Write a row for a request that the gate refused, so many an hour for each caller."""
        needed = self._table.find(scope["method"], scope["path"])
        entry = self._entry(scope, needed, DENIED)
        caller = entry.credential or entry.address
        if self._limits.permits_denied(caller, self._context.clock.now()):
            await self._record(entry)

    async def _record(self, entry: AuditEntry) -> None:
        try:
            await in_thread(record, self._context.platform, entry)
        except PlatformError as error:
            # What cannot be written down is still served: a full disk must not hide the logs of its jobs.
            _LOG.warning("%s of %s is not in the audit log: %s", entry.action, entry.actor, error)

    def _entry(self, scope: Scope, needed: Matched, outcome: str) -> AuditEntry:
        caller: Caller | None = scope.get(CALLER_KEY)
        client = scope.get("client")
        actor = "" if caller is None else caller.actor
        if needed.access.of is Of.ATTEMPT:
            actor = "supervisor"
        return AuditEntry(
            at=self._context.clock.now(),
            actor=actor,
            credential="" if caller is None else caller.token,
            address=str(client[0])[:64] if client else "",
            action=f"{scope['method'][:20]} {shorten(needed.route or 'unknown', 130)}",
            target=_target(scope, needed),
            outcome=outcome,
        )


def _target(scope: Scope, needed: Matched) -> str:
    """The path of a request, without its query, which may hold a ticket.

    The query of a supervisor says for which job, attempt and node it asks, and is kept.
    """
    path = scope["path"]
    if needed.access.of is Of.ATTEMPT:
        path += "?" + scope.get("query_string", b"").decode("ascii", "replace")
    return shorten(replace_unencodable(path), 290)
