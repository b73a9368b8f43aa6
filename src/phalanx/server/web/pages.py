"""Read-only pages without scripts: the list of jobs, and one job with its curves, events and logs.

They work where the web UI does not: in text browsers, and while something is wrong with its files.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.kit.units import format_duration, format_size
from phalanx.schemas.api.jobs import JobView, LineageView
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import JobNum
from phalanx.server.web.login import sign_out_form
from phalanx.server.web.markup import HEADERS, Markup, curve, page, table, tag
from phalanx.services.queries import views
from phalanx.services.queries.logs import LogQuery, read_logs
from phalanx.services.queries.metrics import read_metrics
from phalanx.services.resources import inventory
from phalanx.store.listings.jobs import JobFilter

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
_LIVE_REFRESH_S = 3


@router.get("/plain", openapi_extra=needs(Permission.JOBS_READ, Of.ANY, session=True))
def get_plain(
    here: Here,
    by: By,
    request: Request,
    cursor: Annotated[str | None, Query(max_length=2000)] = None,
) -> Response:
    """All jobs, newest first."""
    wanted = JobFilter(projects=by.projects(Permission.JOBS_READ), archived=False)
    found = views.list_jobs(here.platform, wanted, cursor=cursor, limit=50)
    pools = ", ".join(
        f"{one.name}: {one.num_free} of {one.num_slots} slots free"
        for one in inventory.list_pools(here.platform)
    )
    rows = [_row(one) for one in found.jobs]
    heads = ("job", "name", "state", "why", "step", "slots", "submitted")
    older = tag("a", "older jobs", href=f"plain?cursor={found.cursor}") if found.cursor else ""
    listing = table(heads, rows, (4, 5)) if rows else tag("p", "No job yet.")
    body = (
        tag("h1", "Jobs"),
        tag("p", pools, class_="quiet"),
        listing,
        older,
        sign_out_form(here, request),
    )
    return _answer(page("Phalanx", *body, refresh_s=_LIVE_REFRESH_S))


def _row(job: JobView) -> tuple[str, ...]:
    return (
        tag("a", job.label, href=f"jobs/{job.num}"),
        job.name,
        _state(job),
        _why(job),
        "" if job.progress.step is None else str(job.progress.step),
        str(job.num_slots),
        _time(job.submitted_at),
    )


@router.get(
    "/jobs/{num}", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, session=True, audited=True)
)
def get_job_page(here: Here, num: JobNum) -> HTMLResponse:
    """One job."""
    job = views.job_view(here.platform, num)
    body: list[str] = [
        tag("p", tag("a", "all jobs", href="../plain")),
        tag("h1", f"{job.label} {job.name} ", _state(job)),
        tag("p", _why(job), class_="quiet"),
        _facts(job),
    ]
    if job.failure is not None:
        body += [tag("h2", "Last failure"), tag("p", job.failure.message)]
        body += [tag("pre", job.failure.traceback)] if job.failure.traceback else []
    body += [*_curves(here, num), *_checkpoints(here, num), *_events(here, num), *_logs(here, num)]
    refresh_s = None if job.is_terminal else _LIVE_REFRESH_S
    return _answer(page(f"{job.label} {job.name}", *body, refresh_s=refresh_s))


def _facts(job: JobView) -> Markup:
    progress, lineage = job.progress, job.lineage or LineageView(generations=0)
    rows = [
        ("project", job.project),
        ("gang", f"{job.world_size} ranks on {job.num_slots} slots"),
        ("step", _or_dash(progress.step)),
        ("steps per second", "–" if not progress.steps_per_s else f"{progress.steps_per_s:.1f}"),
        ("last values", ", ".join(f"{k} {v:.4g}" for k, v in progress.last_metrics.items())),
        ("generations", f"{lineage.generations}, {job.restarts} restarts"),
        ("lost to failures", format_duration(lineage.lost_s)),
        ("samples missed, duplicated, redone", _samples(lineage)),
        ("submitted", _time(job.submitted_at)),
    ]
    if job.roles:
        roles = [f"{one.name} {one.num_nodes} × {one.slots_per_node}" for one in job.roles]
        rows.insert(2, ("roles", ", ".join(roles)))
    if job.started_at is not None and job.ended_at is not None:
        took_s = (job.ended_at - job.started_at).total_seconds()
        rows.append(("took", format_duration(took_s)))
    return table(("", ""), rows, ())


def _samples(lineage: LineageView) -> str:
    if lineage.missed is None:
        return "not reported"
    said = f"{lineage.missed}, {lineage.duplicated}, {lineage.redone}"
    return f"{said}; {lineage.unreported} unreported (lost node)" if lineage.unreported else said


def _curves(here: Here, num: int) -> list[str]:
    found = read_metrics(here.platform, num, ranks=(0,), max_points=400).series[:6]
    shown = [curve(one.steps, one.values, one.name) for one in found]
    return [tag("h2", "Metrics of rank 0"), *shown] if shown else []


def _checkpoints(here: Here, num: int) -> list[str]:
    found = views.list_checkpoints(here.platform, num)[-10:]
    rows = []
    for one in reversed(found):
        state = one.state + (" (best)" if one.is_best else "")
        state += f", copy {one.copy_state}" if one.copy_state is not None else ""
        size, saved = format_size(one.size_bytes), _time(one.created_at)
        rows.append((str(one.step), state, one.path, size, saved))
    heads = ("step", "state", "path", "size", "saved")
    return [tag("h2", "Checkpoints"), table(heads, rows, (0, 3))] if rows else []


def _events(here: Here, num: int) -> list[str]:
    found = views.last_events(here.platform, num, 40)
    rows = [
        (_time(one.at), one.kind.replace("_", " "), one.state, one.reason.message, one.actor)
        for one in reversed(found)
    ]
    return [tag("h2", "Events"), table(("when", "what", "state", "why", "by"), rows, ())]


def _logs(here: Here, num: int) -> list[str]:
    lines = read_logs(here.platform, num, LogQuery(tail=60), None).lines
    text = "\n".join(f"{one.rank}| {one.text[:500]}" for one in lines)
    return [tag("h2", "Last lines"), tag("pre", text)] if lines else []


def _state(job: JobView) -> Markup:
    return tag("span", job.state, class_=f"state {job.state}")


def _why(job: JobView) -> str:
    reason = job.pending_reason or job.reason
    return reason.message or reason.code.replace("_", " ")


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _answer(text: str) -> HTMLResponse:
    return HTMLResponse(text, headers=HEADERS)
