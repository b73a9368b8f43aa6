"""Whether the control plane can do its work: `/readyz`."""

from __future__ import annotations

import threading

from phalanx.errors import PlatformError
from phalanx.schemas.api.body import ReadinessView, at_of
from phalanx.server.context import Context
from phalanx.store import migrate
from phalanx.store.database import probe

# A loop runs at every tick; a long plan or a slow disk may delay it.
_SILENT_S = 120.0
_KEPT_S = 1.0
OK = "ok"


class Readiness:
    """The checks of one control plane. A verdict is used for a second: the route needs no token."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._found: tuple[float, ReadinessView] | None = None

    def now(self) -> ReadinessView:
        """Every check with `ok` or what is wrong. It writes to the database, and waits for its lock."""
        with self._lock:
            at = self._context.clock.monotonic()
            if self._found is None or not 0 <= at - self._found[0] < _KEPT_S:
                self._found = (at, _checked(self._context))
            return self._found[1]


def _checked(context: Context) -> ReadinessView:
    checks = {"database": _database(context), "loops": _loops(context)}
    ready = all(said == OK for said in checks.values())
    holder = context.leadership.holder() if checks["database"] == OK else None
    return ReadinessView(
        status="ready" if ready else "not ready",
        checks=checks,
        role=context.leadership.role,
        leader=None if holder is None else holder.owner,
        leads_until=None if holder is None else at_of(holder.expires_at),
    )


def _database(context: Context) -> str:
    store = context.platform.store
    try:
        store.check_place()
        revision = store.revision()
        if revision is not None and revision > migrate.HEAD:
            store.view(lambda tx: migrate.check_usable(tx.conn))
        elif revision != migrate.HEAD:
            return f"the schema is {revision}, this release needs {migrate.HEAD}"
        store.transact(probe)
    except PlatformError as error:
        return error.message
    return OK


def _loops(context: Context) -> str:
    now = context.clock.monotonic()
    limit_s = max(_SILENT_S, 2 * context.settings.retention.tick_s)
    silent = sorted(name for name, beat in context.beats.items() if now - beat > limit_s)
    return f"no step is completed in: {', '.join(silent)}" if silent else OK
