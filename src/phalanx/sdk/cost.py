"""The routes about cost: reports, prices and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from urllib.parse import quote

import httpx

from phalanx.schemas.api.cost import AdviceView, BudgetView, CostReport, SetBudgetRequest
from phalanx.schemas.api.cost_prices import PriceRequest, PriceView, SetPricesRequest
from phalanx.schemas.api.money.anomalies import AnomalyView
from phalanx.schemas.api.money.bills import (
    BillLineRequest,
    BillView,
    ImportBillRequest,
    ImportedBillView,
    ReconciliationView,
)
from phalanx.sdk.transport import V1, Transport


class CostCalls(Transport):
    """One method for each route about cost; `client.costs`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def report(  # noqa: PLR0913
        self,
        by: str = "project",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        project: str | None = None,
        user: str | None = None,
        pool: str | None = None,
        study: int | None = None,
        job: int | None = None,
        limit: int = 100,
    ) -> CostReport:
        """Slot time and money by project, user, job, study, pool, store, time or `label:NAME`.

        Raises UserError for another group.
        """
        params = {
            "by": by,
            "since": None if since is None else since.isoformat(),
            "until": None if until is None else until.isoformat(),
            "project": project,
            "user": user,
            "pool": pool,
            "study": study,
            "job": job,
            "limit": limit,
        }
        return self._get(f"{V1}/cost", CostReport, params)

    def advice(
        self, *, project: str | None = None, user: str | None = None, limit: int = 20
    ) -> list[AdviceView]:
        """What the most expensive jobs could have saved, the largest savings first."""
        params = {"project": project, "user": user, "limit": limit}
        return self._get(f"{V1}/cost/advice", list[AdviceView], params)

    def anomalies(
        self,
        *,
        state: Literal["live", "open", "acknowledged", "closed", "all"] = "live",
        limit: int = 100,
    ) -> list[AnomalyView]:
        """Days that cost much more than expected, the newest first; `live`: those not closed."""
        params = {"state": state, "limit": limit}
        return self._get(f"{V1}/cost/anomalies", list[AnomalyView], params)

    def acknowledge(self, anomaly: int) -> AnomalyView:
        """Say that an anomaly was seen. Raises NotFound, and UserError for a closed one."""
        return self._post(f"{V1}/cost/anomalies/{anomaly}/ack", None, AnomalyView)

    def bills(self) -> list[BillView]:
        """All imported bills, by name."""
        return self._get(f"{V1}/cost/bills", list[BillView])

    def import_bill(self, name: str, lines: Sequence[BillLineRequest]) -> ImportedBillView:
        """Add up to 1,000 lines to a bill, all or none; known lines count once.

        Raises UserError, and Conflict for another line of a known id.
        """
        body = ImportBillRequest(lines=list(lines))
        return self._post(f"{V1}/cost/bills/{quote(name, safe='')}", body, ImportedBillView)

    def remove_bill(self, name: str) -> None:
        """Remove a bill with its lines. Raises NotFound."""
        self._delete(f"{V1}/cost/bills/{quote(name, safe='')}")

    def reconcile(
        self, month: str, *, by: Literal["month", "day"] = "month", tolerance: float = 1.0
    ) -> ReconciliationView:
        """Compare the bills of a month, such as `2026-11`, with the ledger; `tolerance` in percent."""
        params = {"month": month, "by": by, "tolerance": tolerance}
        return self._get(f"{V1}/cost/reconciliation", ReconciliationView, params)

    def prices(self, *, history: bool = False) -> list[PriceView]:
        """Prices that count now or later; with `history` also those that counted before."""
        return self._get(f"{V1}/cost/prices", list[PriceView], {"history": history or None})

    def set_prices(self, prices: Sequence[PriceRequest]) -> list[PriceView]:
        """Set prices, all or none; returns those that were not known. Raises UserError."""
        body = SetPricesRequest(prices=list(prices))
        return self._post(f"{V1}/cost/prices", body, list[PriceView])

    def budgets(self) -> list[BudgetView]:
        """All budgets with what was used of them."""
        return self._get(f"{V1}/cost/budgets", list[BudgetView])

    def budget(self, scope: Literal["project", "user", "job"], name: str) -> BudgetView:
        """One budget with what was used of it. Raises NotFound."""
        return self._get(f"{V1}/cost/budgets/{scope}/{quote(name, safe='')}", BudgetView)

    def set_budget(
        self, scope: Literal["project", "user", "job"], name: str, limits: SetBudgetRequest
    ) -> BudgetView:
        """Set or change a budget. Raises NotFound for an unknown job."""
        return self._put(f"{V1}/cost/budgets/{scope}/{quote(name, safe='')}", limits, BudgetView)

    def remove_budget(self, scope: Literal["project", "user", "job"], name: str) -> None:
        """Remove a budget. Raises NotFound."""
        self._delete(f"{V1}/cost/budgets/{scope}/{quote(name, safe='')}")
