"""The route about runs: queries over parameters, metrics, tags and states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import httpx

from phalanx.schemas.api.tracking.runs import RunNamesView, RunPage, RunView
from phalanx.sdk.transport import V1, Transport

_PAGE = 500


class RunCalls(Transport):
    """The calls about runs; `client.runs`."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def page(
        self,
        query: str = "",
        *,
        sort: str = "-num",
        metrics: Sequence[str] = (),
        archived: Literal["exclude", "include", "only"] = "exclude",
        cursor: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """One page of runs that match a query, such as `metric:val_acc>0.9 param:lr<1e-3 tag:baseline`.

        `sort` is a column of the listing of jobs, `metric:NAME`, `metric:max(NAME)` or `param:NAME`, with
        `-` in front for the largest first. `metrics` are those that the answer has; default: those that
        scripts logged. Raises UserError, which marks the place of a mistake in the query.
        """
        wanted = {
            "q": query,
            "sort": sort,
            "metric": list(metrics),
            "archived": archived,
            "cursor": cursor,
            "limit": limit,
        }
        return self._get(f"{V1}/runs", RunPage, wanted)

    def names(self) -> RunNamesView:
        """The names of parameters, metrics, tags and groups in the newest 1000 runs."""
        return self._get(f"{V1}/runs/names", RunNamesView)

    def every(
        self,
        query: str = "",
        *,
        sort: str = "-num",
        metrics: Sequence[str] = (),
        archived: Literal["exclude", "include", "only"] = "exclude",
    ) -> Iterator[RunView]:
        """The runs of all pages, with the arguments of `page`."""
        cursor = None
        while True:
            found = self.page(
                query,
                sort=sort,
                metrics=metrics,
                archived=archived,
                cursor=cursor,
                limit=_PAGE,
            )
            yield from found.runs
            cursor = found.cursor
            if cursor is None:
                return
