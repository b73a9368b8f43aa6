"""Bodies about the audit log."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from phalanx.schemas.api.body import At, ResponseBody


class AuditChangeView(ResponseBody):
    """One thing that a request changed. None: it was not there before, or is not there after."""

    what: str
    before: Any = None
    after: Any = None


class AuditEntryView(ResponseBody):
    """A request that changed something, read something that is audited, or was denied."""

    id: int
    at: At
    actor: str
    credential: str
    address: str
    action: str
    target: str
    outcome: str  # changed, read or denied
    changes: list[AuditChangeView] = Field(default_factory=list)


class AuditPage(ResponseBody):
    """Entries, newest first. `next` is the `before` of the next page; None after the last one."""

    entries: list[AuditEntryView]
    next: int | None = None
