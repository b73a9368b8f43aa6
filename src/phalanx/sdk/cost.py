"""The routes about cost: reports."""

from __future__ import annotations

from datetime import datetime

import httpx

from phalanx.schemas.api.cost import CostReport
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
        """Slot time and money by project, user, job, study, pool, day, week, month or `label:NAME`.

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
