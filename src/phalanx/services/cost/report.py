"""Reports of slot time and money by project, user, job and other groups."""

from __future__ import annotations

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.totals import Totals, added
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.cost import GROUPS, CostGroupView, CostReport, CostView
from phalanx.services.ledger.accounts import grouped
from phalanx.services.platform import Platform
from phalanx.store.cost.rows import LABEL, CostFilter
from phalanx.store.database import Tx

_BY_TIME = ("day", "week", "month")


def cost_report(
    platform: Platform, by: str, wanted: CostFilter, now: int, *, limit: int
) -> CostReport:
    """Totals by group, those of live jobs up to `now` included. Raises UserError for an unknown group."""
    if by not in GROUPS and (not by.startswith(LABEL) or by == LABEL):
        said = f"one of {', '.join(GROUPS)}, or label:NAME"
        raise UserError(f"there is no group {by!r} of costs", f"write {said}")

    def work(tx: Tx) -> dict[str, Totals]:
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        return grouped(tx, by, wanted, [*waiting, *holding], now)

    found = platform.store.view(work)
    keys = sorted(found) if by in _BY_TIME else sorted(found, key=lambda key: _rank(key, found))
    kept = keys[-limit:] if by in _BY_TIME else keys[:limit]
    return CostReport(
        by=by,
        since=at_or_none(wanted.since),
        until=at_or_none(wanted.until),
        groups=[CostGroupView(key=key, cost=CostView.from_core(found[key])) for key in kept],
        total=CostView.from_core(added(found.values())),
    )


def _rank(key: str, found: dict[str, Totals]) -> tuple[int, int, str]:
    return (-found[key].nano_usd, -found[key].held_us, key)


def day_of(at: int) -> int:
    """The begin of a time's day (UTC)."""
    return at // DAY_US * DAY_US
