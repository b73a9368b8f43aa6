"""Use against every quota, as the API shows it, and the step that tells alerts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from phalanx.core.quotas.alerts import QuotaAlert, judged_alerts
from phalanx.core.quotas.usage import HeldSlots, QuotaKey, QuotaUse, quota_uses
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.pools import QuotaAlertView, QuotaList, QuotaView
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.quotas import rows

_LOG = logging.getLogger(__name__)


def list_quotas(
    platform: Platform,
    *,
    seen: Sequence[str] | None,
    owner: str,
    project: str | None = None,
    user: str | None = None,
) -> QuotaList:
    """Every quota with its use, and the alerts; `project` and `user` choose some of them.

    `seen` are the projects that the caller may see; None: all. Quotas of the whole platform are shown to
    callers that see all projects, and to the user that they are of. Raises ExecutorUnavailable.
    """

    def shown(key: QuotaKey) -> bool:
        visible = seen is None or (key.project in seen if key.project else key.user == owner)
        return visible and project in (None, key.project) and user in (None, key.user)

    types = slot_types(platform)
    uses, alerts = platform.store.view(lambda tx: (uses_now(platform, tx, types), rows.alerts(tx)))
    return QuotaList(
        quotas=quota_views(uses, shown),
        alerts=[_alert_view(one) for one in alerts if one.told_at is not None and shown(one.key)],
    )


def slot_types(platform: Platform) -> dict[str, str]:
    """The slot type of each node. Raises ExecutorUnavailable."""
    return {node.id: node.slot_type for node in platform.cluster()}


def uses_now(platform: Platform, tx: Tx, types: dict[str, str]) -> list[QuotaUse]:
    """Every quota with what counts against it; `types` are the slot types of nodes."""
    specs, users = platform.scheduler_cache.rows.quotas(tx)
    tree = {name: one.to_core() for name, one in specs.items()}
    quotas = [*users, *(one for project in tree.values() for one in project.users)]
    limits = (one.max_slots is not None or one.max_running is not None for one in tree.values())
    if not quotas and not any(limits) and not any(one.max_slots_by_type for one in tree.values()):
        return []
    counted = any(one.max_submitted is not None for one in quotas)
    held = [_held(one, types) for one in platform.scheduler_cache.rows.holding(tx)]
    return quota_uses(tree, users, held, rows.live_by_user(tx) if counted else {})


def _held(stored: StoredJob, types: dict[str, str]) -> HeldSlots:
    slots: dict[str, int] = {}
    attempt = stored.job.attempt
    for share in () if attempt is None else attempt.placement.shares:
        slot_type = types.get(share.node, "")
        slots[slot_type] = slots.get(slot_type, 0) + len(share.slots)
    return HeldSlots(stored.facts.project, stored.facts.owner, slots)


def quota_views(uses: Sequence[QuotaUse], shown: Callable[[QuotaKey], bool]) -> list[QuotaView]:
    """Quotas as the API shows them."""
    return [
        QuotaView(
            project=one.key.project or None,
            user=one.key.user or None,
            slot_type=one.key.slot_type or None,
            unit=one.key.unit.value,
            used=one.used,
            limit=one.most,
            used_percent=one.percent,
            label=one.key.label,
        )
        for one in uses
        if shown(one.key)
    ]


def _alert_view(one: QuotaAlert) -> QuotaAlertView:
    return QuotaAlertView(
        project=one.key.project or None,
        user=one.key.user or None,
        slot_type=one.key.slot_type or None,
        unit=one.key.unit.value,
        percent=one.percent or None,
        job=one.job or None,
        at=at_of(one.told_at or 0),
        over=one.reached_at is None,
        message=one.message,
    )


def quotas_step(platform: Platform, now: int) -> None:
    """Tell sustained use of quotas and long waits for them, each once. Raises ExecutorUnavailable."""
    types = slot_types(platform)

    def changed(tx: Tx) -> bool:
        before = rows.alerts(tx)
        after = judged_alerts(before, uses_now(platform, tx, types), rows.waits(tx), now)
        return set(after) != set(before)

    def apply(tx: Tx) -> None:
        before = rows.alerts(tx)
        after = judged_alerts(before, uses_now(platform, tx, types), rows.waits(tx), now)
        fresh = set(after) - set(before)
        rows.put_alerts(tx, set(before) - set(after), fresh)
        for one in sorted(fresh, key=lambda one: (one.key, one.percent, one.job)):
            if one.told_at == now:
                _LOG.warning("%s", one.message)

    if platform.store.view(changed):
        platform.store.transact(apply)
