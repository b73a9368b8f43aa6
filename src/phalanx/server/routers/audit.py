"""The route that shows the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.audit import AuditPage
from phalanx.server.access import Of, needs
from phalanx.server.context import Here
from phalanx.server.strict_requests import SearchText, StrictRoute
from phalanx.services.tenancy.audit import audit_page
from phalanx.store.tenancy.audit import AuditFilter

router = APIRouter(prefix="/api/v1/audit", tags=["audit"], route_class=StrictRoute)


@router.get("", openapi_extra=needs(Permission.AUDIT_READ, Of.WHOLE))
def get_audit(  # noqa: PLR0913
    here: Here,
    actor: SearchText = None,
    action: SearchText = None,
    target: SearchText = None,
    outcome: Literal["changed", "read", "denied"] | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """The audit log, newest first. `before` is the `next` of the previous page.

    `action` is a part of the method and route, `target` the beginning of the requested path.
    """
    wanted = AuditFilter(actor, action, target, outcome, _us(since), _us(until))
    return audit_page(here.platform, wanted, before=before, limit=limit)


def _us(at: AwareDatetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000_000)
