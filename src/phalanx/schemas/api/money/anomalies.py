"""Bodies about anomalies of cost: days of a group that cost much more than expected."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from pydantic import Field

from phalanx.schemas.api.body import At, ResponseBody


class AnomalyCauseView(ResponseBody):
    """What has grown most from the mean day of the week before; null: nothing of the kind has grown.

    `account` is one of the accounts of slot time, such as `lost_to_failure`. Money is null where the group
    has no price.
    """

    job: int | None = None
    job_extra_usd: Decimal | None = None
    pool: str | None = None
    pool_extra_usd: Decimal | None = None
    account: str | None = None
    account_extra_slot_hours: float = 0.0


class AnomalyView(ResponseBody):
    """Days in a row on which a project, user, pool or label cost much more than expected.

    `state`: `open`, `acknowledged` or `closed`. Amounts are in US dollars, or in slot-hours where nothing
    of the group has a price. `also` names other groups that have grown because of the same job.
    """

    id: int
    scope: str
    name: str  # of a label: NAME=VALUE
    state: str
    first_day: date
    last_day: date
    usd: Decimal | None = None
    expected_usd: Decimal | None = None
    extra_usd: Decimal | None = None
    slot_hours: float | None = None
    expected_slot_hours: float | None = None
    extra_slot_hours: float | None = None
    cause: AnomalyCauseView = Field(default_factory=AnomalyCauseView)
    also: list[str] = Field(default_factory=list)
    message: str = ""
    found_at: At
    acknowledged_at: At | None = None
    acknowledged_by: str = ""
    closed_at: At | None = None
