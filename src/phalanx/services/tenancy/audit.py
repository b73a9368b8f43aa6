"""Write the rows of reads and denied requests, and show the audit log."""

from __future__ import annotations

from phalanx.schemas.api.audit import AuditChangeView, AuditEntryView, AuditPage
from phalanx.schemas.api.body import at_of
from phalanx.services.platform import Platform
from phalanx.store.tenancy import audit
from phalanx.store.tenancy.audit import AuditEntry, AuditFilter


def record(platform: Platform, entry: AuditEntry) -> None:
    """Append one row in a transaction of its own."""
    platform.store.transact(lambda tx: audit.append(tx, entry))


def audit_page(
    platform: Platform, wanted: AuditFilter, *, before: int | None, limit: int
) -> AuditPage:
    """A page of the audit log, newest first."""
    found = platform.store.view(lambda tx: audit.page(tx, wanted, before=before, limit=limit + 1))
    shown = [_view(one) for one in found[:limit]]
    return AuditPage(entries=shown, next=shown[-1].id if len(found) > limit else None)


def _view(one: AuditEntry) -> AuditEntryView:
    return AuditEntryView(
        id=one.id,
        at=at_of(one.at),
        actor=one.actor,
        credential=one.credential,
        address=one.address,
        action=one.action,
        target=one.target,
        outcome=one.outcome,
        changes=[AuditChangeView(**change) for change in one.changes],
    )
