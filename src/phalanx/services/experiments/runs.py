"""Queries over runs: pages of jobs with their parameters and metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from phalanx.core.experiments.query import parse
from phalanx.core.telemetry.instruments import INSTRUMENTS, is_part
from phalanx.core.tenancy.principals import Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.tracking.runs import (
    MAX_METRICS,
    MAX_PARAMS,
    RunMetricView,
    RunNamesView,
    RunPage,
    RunsQuery,
    RunView,
)
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.experiments import params, queries, terms
from phalanx.store.experiments.queries import MetricSummary
from phalanx.store.listings.jobs import JobFilter, ListedJob, Order, page

_MOST_NAMES = 1000
_ARCHIVED = {"exclude": False, "only": True, "include": None}


def list_runs(platform: Platform, query: RunsQuery, by: Caller, now: int) -> RunPage:
    """Read a page of runs that the caller may see.

    Raises UserError for a query that cannot be read, and for a cursor of another order.
    """
    wanted = JobFilter(
        terms=parse(query.q, now),
        projects=by.projects(Permission.JOBS_READ),
        archived=_ARCHIVED[query.archived],
    )
    order = Order.parse(query.sort)

    def work(tx: Tx) -> RunPage:
        found = page(tx, wanted, order=order, cursor=query.cursor, limit=query.limit)
        nums = [one.num for one in found.jobs]
        known = params.counting(tx, nums, MAX_PARAMS)
        commits = terms.commits(tx, nums)
        rows: dict[int, list[MetricSummary]] = {}
        for row in queries.summaries(tx, nums, query.metric):
            rows.setdefault(row.job, []).append(row)
        runs = [
            _run(platform, one).model_copy(
                update={
                    "commit": commits.get(one.num, ""),
                    "params": known.get(one.num, {}),
                    "metrics": _metrics(rows.get(one.num, []), query.metric),
                }
            )
            for one in found.jobs
        ]
        return RunPage(runs=runs, cursor=found.cursor)

    return platform.store.view(work)


def list_names(platform: Platform, by: Caller) -> RunNamesView:
    """The names in the newest runs that the caller may see."""
    found = platform.store.view(
        lambda tx: queries.names(tx, by.projects(Permission.JOBS_READ), limit=_MOST_NAMES)
    )
    return RunNamesView(**found)


def _run(platform: Platform, one: ListedJob) -> RunView:
    job, facts, spec = one.stored.job, one.stored.facts, one.stored.facts.spec
    return RunView.of(
        facts,
        job=job.num,
        label=job_label(job.num),
        url=platform.job_url(job.num),
        state=job.state.value,
        description=spec.get("description") or "",
        tags=list(spec.get("tags") or ()),
        group=spec.get("group") or "",
        submitted_at=at_of(job.submitted_at),
        ended_at=at_or_none(job.ended_at),
        duration_s=one.beside.duration_s,
    )


def _metrics(rows: Sequence[MetricSummary], wanted: Collection[str]) -> Mapping[str, RunMetricView]:
    """The metrics that were asked for, or those that scripts logged."""
    chosen = [one for one in rows if wanted or not (one.name in INSTRUMENTS or is_part(one.name))]
    return {
        one.name: RunMetricView(last=one.last, min=one.least, max=one.most, step=one.step)
        for one in sorted(chosen, key=lambda one: one.name)[:MAX_METRICS]
    }
