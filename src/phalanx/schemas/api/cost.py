"""Bodies about cost: slot time by account, money, and reports by project, user, job and other groups."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from phalanx.core.cost.ledger import Account
from phalanx.core.cost.storage import StorageTotals
from phalanx.core.cost.totals import Totals, usd_of
from phalanx.schemas.api.body import At, RequestBody, ResponseBody

CostGroup = Literal["project", "user", "job", "study", "pool", "store", "day", "week", "month"]
"""What a report adds up by; a label is given as `label:NAME`."""
GROUPS: tuple[str, ...] = get_args(CostGroup)
_US = 1_000_000


class AccountsView(ResponseBody):
    """Slot-seconds by account. All but `queued` are time in which slots were held."""

    queued: float = 0.0
    starting: float = 0.0
    productive: float = 0.0
    saving: float = 0.0
    redone: float = 0.0
    lost_to_failure: float = 0.0
    lost_to_preemption: float = 0.0
    idle: float = 0.0


class StorageCostView(ResponseBody):
    """Kept checkpoints and output, and what was moved to and from object stores.

    `gb_months` are gigabytes (10⁹ bytes) times months of 30 days. `kept_bytes` are those of the present, 0
    for days, weeks and months. Money is null where nothing had a price.
    """

    kept_bytes: int = 0
    gb_months: Decimal = Decimal(0)
    uploaded_bytes: int = 0
    read_bytes: int = 0
    storage_usd: Decimal | None = None
    transfer_usd: Decimal | None = None

    @classmethod
    def from_totals(cls, one: StorageTotals) -> Self:
        """The view of sums of stored objects."""
        return cls(
            kept_bytes=one.kept_bytes,
            gb_months=one.gb_months,
            uploaded_bytes=one.uploaded_bytes,
            read_bytes=one.read_bytes,
            storage_usd=usd_of(one.storage_nano) if one.storage_nano else None,
            transfer_usd=usd_of(one.transfer_nano) if one.transfer_nano else None,
        )


class CostView(ResponseBody):
    """Slot-seconds and money. `held` is the sum of all accounts but `queued`.

    `wasted` is what interruptions have cost: steps made again, and time lost to failures and preemptions.
    `usd` is the money of slots and CPU cores, null where no slot had a price. `storage` has what was kept
    and moved; null where nothing was, and in reports by pool, study or label.
    """

    accounts: AccountsView = Field(default_factory=AccountsView)
    held: float = 0.0
    wasted: float = 0.0
    usd: Decimal | None = None
    storage: StorageCostView | None = None

    @classmethod
    def from_core(cls, totals: Totals, storage: StorageTotals | None = None) -> Self:
        """The view of sums of the ledger."""
        accounts = {one.value: totals.slot_us.get(one, 0) / _US for one in Account}
        return cls(
            accounts=AccountsView(**accounts),
            held=totals.held_us / _US,
            wasted=totals.wasted_us / _US,
            usd=totals.usd if totals.nano_usd else None,
            storage=StorageCostView.from_totals(storage) if storage else None,
        )


class UnitCostView(ResponseBody):
    """What each epoch, step, sample or token has cost: all of the job's cost over their number.

    `unit`: `epoch`, `step`, `sample` or `token`. `estimated`: the number is from a rate. `usd` is null
    where no slot had a price.
    """

    unit: str
    count: float
    slot_s: float
    usd: Decimal | None = None
    estimated: bool = False


class CostGroupView(ResponseBody):
    """One group of a report. `key` is empty for what belongs to none: a wait, for example, to no pool."""

    key: str
    cost: CostView


class ForecastView(ResponseBody):
    """The present month (UTC): what was used, and what is expected if the last seven whole days go on.

    `trend` is the use of those days over that of the seven before; null where nothing was used then.
    """

    used_slot_hours: float
    used_usd: Decimal | None = None
    expected_slot_hours: float
    expected_usd: Decimal | None = None
    trend: float | None = None


class CostReport(ResponseBody):
    """What jobs used in whole days (UTC), by group; live jobs are included up to now.

    `groups` are in the order of time for days, weeks and months, else the largest first. Those beyond the
    limit are in `total` only. `forecast` is given with days, weeks and months.
    """

    by: str
    since: At | None = None
    until: At | None = None
    groups: list[CostGroupView]
    total: CostView
    forecast: ForecastView | None = None


class AdviceView(ResponseBody):
    """What a job could have saved, and the measurements that say so; null: no slot had a price.

    `rule`: `idle`, `wasted`, `checkpoints`, `utilisation` or `spot`. `slot_hours`, `usd` and `size_bytes`
    are the saving; `usd` of checkpoints is that of 30 days.
    """

    rule: str
    job: int
    evidence: str
    action: str
    slot_hours: float = 0.0
    usd: Decimal | None = None
    size_bytes: int = 0


class SetBudgetRequest(RequestBody):
    """The limits of a budget, at least one.

    At 100 % no job of it starts; at `pause_percent` its running jobs pause.
    """

    usd: Annotated[Decimal, Field(ge=0, le=1_000_000_000, max_digits=18)] | None = None
    slot_hours: Annotated[float, Field(ge=0, le=1e9)] | None = None
    period: Literal["total", "month"] = "total"
    warn: Annotated[list[Annotated[int, Field(ge=1, le=100)]], Field(max_length=10)] = Field(
        default_factory=lambda: [50, 80]
    )
    pause_percent: Annotated[int, Field(ge=100, le=1000)] = 110

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.usd is None and self.slot_hours is None:
            raise ValueError("a budget needs a limit: usd, slot_hours or both")
        return self


class BudgetAlertView(ResponseBody):
    """A share of a budget that was reached; each is told once in a period."""

    percent: int
    at: At
    message: str


class BudgetView(ResponseBody):
    """A budget and what was used of it in its period, running jobs included.

    `state`: `open`, `holding` (no job starts) or `pausing` (running jobs pause as well).
    """

    scope: Literal["project", "user", "job"]
    name: str
    label: str
    usd: Decimal | None = None
    slot_hours: float | None = None
    period: Literal["total", "month"]
    warn: list[int]
    pause_percent: int
    state: str
    used_usd: Decimal
    used_slot_hours: float
    used_percent: int
    alerts: list[BudgetAlertView] = Field(default_factory=list)


class EstimatePointView(ResponseBody):
    """One quantile of an estimate. `usd` is null where no slot that the job may get has a price."""

    slot_hours: float
    duration_s: float  # on all slots that the job asks for
    usd: Decimal | None = None


class EstimateView(ResponseBody):
    """What a job will probably use, as half and as nine of ten such jobs did.

    `p50` and `p90` are null while too little is known. Money is at the highest price of a slot that the job
    may get. `warnings` are of budgets that the job may exceed.
    """

    p50: EstimatePointView | None = None
    p90: EstimatePointView | None = None
    basis: str = ""
    usd_per_slot_hour: Decimal | None = None
    warnings: list[str] = Field(default_factory=list)
