"""Convert stored jobs, events and checkpoints to response bodies of the API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from phalanx.core.contract.secrecy import shown_spec
from phalanx.core.cost.totals import Totals, usd_of
from phalanx.core.cost.units import MadeUnits, tokens_of, unit_costs
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.links import cost_of
from phalanx.core.gang.roles import Part, part_of_rank, world_of
from phalanx.core.jobs.model import TERMINAL, Attempt, Job, JobState
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.retention.policy import DataKind
from phalanx.core.telemetry.instruments import INSTRUMENTS
from phalanx.core.tracing.identity import JobTrace
from phalanx.core.training.resumption import AWAITING
from phalanx.errors import ExecutorUnavailable, UserError
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.cost import CostView, UnitCostView
from phalanx.schemas.api.jobs import (
    BatchedJob,
    BatchResponse,
    CheckpointView,
    CommunicationView,
    DependencyView,
    EventPage,
    EventView,
    ExpiryView,
    FailureView,
    JobPage,
    JobView,
    NodeRankView,
    ProgressView,
    RankView,
    ReasonView,
    RoleView,
)
from phalanx.services.ledger.accounts import cost_of_job
from phalanx.services.ledger.budgets import budget_of_job
from phalanx.services.ledger.storage import storage_of_jobs
from phalanx.services.lifecycle.assignments import checkpoint_dir
from phalanx.services.platform import Platform
from phalanx.services.queries import presence
from phalanx.services.queries.lineage import lineage_view
from phalanx.services.retention.periods import periods_of
from phalanx.store import events, jobs, lineage, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts, StoredJob
from phalanx.store.listings.jobs import NEWEST, JobFilter, ListedFacts, Order, beside, page
from phalanx.store.metrics import arrivals, last_values
from phalanx.store.metrics.arrivals import MetricChunk
from phalanx.store.retention import marks
from phalanx.store.retention.marks import JobMark, MarkKind
from phalanx.store.studies import checkpoint_pins
from phalanx.store.supervisors import SupervisorRow
from phalanx.store.tags.rows import settings_tag
from phalanx.store.workflow import dependencies

MISSING = "missing"
"""The state of a checkpoint that was committed, not removed by retention, and is not there."""


def job_view(platform: Platform, num: int, now: int | None = None) -> JobView:
    """Read one job with all details, and with what it has cost up to `now`. Raises NotFound."""

    def work(tx: Tx) -> tuple[JobView, StoredJob, list[lineage.CheckpointRow]]:
        stored = jobs.load(tx, num)
        local = presence.on_this_machine(tx, num, stored.job.attempts)
        rows = lineage.valid_checkpoints_of(tx, num) if local else []
        found = _detailed(platform, tx, num)
        found = found.model_copy(update={"expires": _expires(platform, tx, stored, found)})
        if now is not None:
            used = cost_of_job(tx, stored, now)
            kept = storage_of_jobs(tx, [num], now).get(num)
            parts = {
                "cost": CostView.from_core(used, kept),
                "unit_costs": _unit_costs(found, used),
                "budget": budget_of_job(tx, stored, now),
            }
            found = found.model_copy(update=parts)
        return found, stored, rows

    view, stored, rows = platform.store.view(work)
    view = view.model_copy(update={"communication": communication_of(platform, stored.job)})
    gone = _gone(platform, stored, rows)
    if not gone or view.lineage is None:
        return view
    counted = {"num_valid": view.lineage.num_valid - len(gone), "num_missing": len(gone)}
    return view.model_copy(update={"lineage": view.lineage.model_copy(update=counted)})


def _unit_costs(view: JobView, used: Totals) -> list[UnitCostView]:
    """What each epoch, step, sample and token has cost, as far as the job reported them."""
    progress, lineage = view.progress, view.lineage
    metrics = progress.last_metrics
    epochs: float | None = progress.epoch or metrics.get("epoch")
    if view.state == JobState.SUCCEEDED and progress.num_epochs:
        epochs = progress.num_epochs
    samples = None if lineage is None else lineage.consumed
    if samples and lineage is not None and lineage.num_samples:
        epochs = samples / lineage.num_samples
    tokens, estimated = tokens_of(metrics, used, view.num_slots)
    made = MadeUnits(epochs, progress.high_water_step, samples, tokens, estimated)
    return [
        UnitCostView(
            unit=one.unit.value,
            count=one.count,
            slot_s=one.slot_s,
            usd=one.usd,
            estimated=one.estimated,
        )
        for one in unit_costs(used, made)
    ]


def communication_of(platform: Platform, job: Job) -> CommunicationView | None:
    """What the live placement costs in communication; None without one, or while nodes are not known."""
    if job.attempt is None:
        return None
    try:
        nodes = {node.id: node for node in platform.cluster()}
    except ExecutorUnavailable:
        return None
    placement = job.attempt.placement
    return CommunicationView.of(
        cost_of(placement, nodes), num_nodes=len({share.node for share in placement.shares})
    )


def list_jobs(
    platform: Platform,
    wanted: JobFilter,
    *,
    order: Order = NEWEST,
    cursor: str | None = None,
    limit: int,
) -> JobPage:
    """Read a page of jobs. Raises UserError for a cursor that is not of this order."""

    def work(tx: Tx) -> JobPage:
        found = page(tx, wanted, order=order, cursor=cursor, limit=limit)
        live = [(one.num, one.stored.job.attempt) for one in found.jobs]
        rows: dict[int, list[SupervisorRow]] = {}
        for row in supervisors.of_attempts(tx, [(num, one.num) for num, one in live if one]):
            rows.setdefault(row.job, []).append(row)
        shown = [
            _brief(platform, one.stored, rows.get(one.num, []), one.beside) for one in found.jobs
        ]
        marked = marks.of_jobs(tx, [one.num for one in shown])
        shown = [_marked(one, marked.get(one.num, {})) for one in shown]
        return JobPage(jobs=shown, cursor=found.cursor)

    return platform.store.view(work)


def batch_view(platform: Platform, nums: Sequence[int]) -> BatchResponse:
    """The jobs of a batch in short, in order."""
    found = platform.store.view(lambda tx: jobs.briefs(tx, nums))
    return BatchResponse(
        jobs=[
            BatchedJob.of(one, label=job_label(one.num), url=platform.job_url(one.num))
            for one in found
        ]
    )


def event_page(platform: Platform, num: int, *, after: int, limit: int = 500) -> EventPage:
    """A job's events behind `after`. Raises NotFound."""

    def work(tx: Tx) -> EventPage:
        stored = jobs.load(tx, num)
        found = events.of_job(tx, num, after=after, limit=limit)
        cursor = found[-1].seq if found else after
        done = stored.job.is_terminal and cursor >= stored.last_seq
        return EventPage(events=[event_view(one) for one in found], cursor=cursor, done=done)

    return platform.store.view(work)


def last_events(platform: Platform, num: int, count: int) -> list[EventView]:
    """Read the newest events of a job, in order. Raises NotFound."""

    def work(tx: Tx) -> list[EventView]:
        last_seq = jobs.load(tx, num).last_seq
        found = events.of_job(tx, num, after=max(0, last_seq - count), limit=count)
        return [event_view(one) for one in found]

    return platform.store.view(work)


def list_checkpoints(platform: Platform, num: int) -> list[CheckpointView]:
    """A job's checkpoints, oldest first. Raises NotFound."""

    def work(tx: Tx) -> tuple[StoredJob, list[lineage.CheckpointRow], bool, set[str]]:
        stored = jobs.load(tx, num)
        local = presence.on_this_machine(tx, num, stored.job.attempts)
        pins = checkpoint_pins.pinned_by_users(tx, num)
        return stored, lineage.checkpoints_of(tx, num), local, pins

    stored, rows, local, pins = platform.store.view(work)
    gone = _gone(platform, stored, rows) if local else frozenset()
    rows = [replace(row, state=MISSING) if row.path in gone else row for row in rows]
    best = best_path(rows, stored.facts.spec)
    return [
        CheckpointView.of(
            row,
            created_at=at_of(row.created_at),
            near="://" not in row.path,
            copied_at=at_or_none(row.copied_at),
            is_best=row.path == best,
            is_pinned=row.path in pins,
        )
        for row in rows
    ]


def _gone(
    platform: Platform, stored: StoredJob, rows: Sequence[lineage.CheckpointRow]
) -> frozenset[str]:
    """Paths of checkpoints that are valid by their reports, and nowhere any more."""
    folder = checkpoint_dir(platform.home, stored.facts.project, stored.job.num)
    here = [row.path for row in rows if row.state == "valid" and row.copy_state != "stored"]
    return presence.missing(folder, here)


def best_path(rows: Sequence[lineage.CheckpointRow], spec: object) -> str | None:
    """The valid checkpoint that is best by the metric that the spec names."""
    here: object = spec
    for key in ("checkpoint", "keep", "best"):
        here = here.get(key) if isinstance(here, dict) else None
    if not isinstance(here, dict):
        return None
    name, sign = str(here.get("metric")), -1.0 if here.get("mode") == "min" else 1.0
    known = [row for row in rows if row.state == "valid" and name in row.metrics]
    best = max(known, key=lambda row: sign * row.metrics[name], default=None)
    return None if best is None else best.path


def awaited(job: Job, rows: Sequence[SupervisorRow]) -> Reason | None:
    """What a job that holds slots waits for before it can train: its checkpoints, or nothing."""
    if job.attempt is None or not any(row.phase == AWAITING for row in rows):
        return None
    wanted = job.progress.checkpoint_path or "its checkpoints"
    said = f"waits for {wanted}, which is missing or cannot be read"
    return Reason(ReasonCode.CHECKPOINT_MISSING, said)


# -- one job -------------------------------------------------------------------------------------


def _detailed(platform: Platform, tx: Tx, num: int) -> JobView:
    stored = jobs.load(tx, num)
    job, facts = stored.job, stored.facts
    rows: list[SupervisorRow] = []
    if job.attempt is not None:
        rows = supervisors.of_attempt(tx, num, job.attempt.num)
    brief = _brief(platform, stored, rows, beside(tx, [num]).get(num))
    return _marked(brief, marks.of_job(tx, num)).model_copy(
        update={
            "ranks": [] if job.attempt is None else _ranks(job.attempt, rows, stored),
            "nodes": [] if job.attempt is None else _nodes(job.attempt, rows),
            "progress": _progress(tx, stored, rows),
            "lineage": lineage_view(tx, job),
            "waits_for": waits_for(platform, tx, job),
            "spec": shown_spec(facts.spec),
            "withheld": sorted({one for layer in _withheld(facts) for one in layer}),
            "trace_id": JobTrace(num, str((facts.contract or {}).get("uid") or "")).root.trace,
            "code": facts.code_digest,
            "directory": str(platform.home.job_dir(num)),
            "checkpoint_dir": str(checkpoint_dir(platform.home, facts.project, num)),
        }
    )


def _expires(platform: Platform, tx: Tx, stored: StoredJob, view: JobView) -> list[ExpiryView]:
    """When retention deletes the data of a job; empty for one that has not ended or is pinned."""
    ended_at = stored.job.ended_at
    if ended_at is None or view.pinned_at is not None:
        return []
    periods = periods_of(platform, tx, stored.facts.project)
    failed = stored.job.state is JobState.FAILED
    found = {kind: periods.ends_at(kind, ended_at, failed=failed) for kind in DataKind}
    return [
        ExpiryView(kind=kind.value, at=at_of(at)) for kind, at in found.items() if at is not None
    ]


def _marked(view: JobView, found: Mapping[MarkKind, JobMark]) -> JobView:
    """A view with the marks of its job: whether it is archived or pinned."""
    if not found:
        return view
    archived, pinned = found.get(MarkKind.ARCHIVED), found.get(MarkKind.PINNED)
    return view.model_copy(
        update={
            "archived_at": at_or_none(None if archived is None else archived.at),
            "pinned_at": at_or_none(None if pinned is None else pinned.at),
            "pinned_by": None if pinned is None else pinned.by,
        }
    )


def waits_for(platform: Platform, tx: Tx, job: Job) -> list[DependencyView]:
    """The dependencies of a job that are not met yet, with the states of the other jobs."""
    known = dependencies.others(tx, (one.job for one in job.waits_for))
    return [
        DependencyView(
            job=one.job,
            label=job_label(one.job),
            url=platform.job_url(one.job),
            kind=one.kind.value,
            state=known[one.job].state.value,
        )
        for one in job.waits_for
        if one.job in known
    ]


def _withheld(facts: JobFacts) -> list[list[str]]:
    """The names of secret variables by layer, also of a job of which the rest cannot be read."""
    return list(((facts.contract or {}).get("withheld") or {}).values())


def _brief(
    platform: Platform,
    stored: StoredJob,
    rows: Sequence[SupervisorRow],
    beside: ListedFacts | None,
) -> JobView:
    job, facts, attempt = stored.job, stored.facts, stored.job.attempt
    # The failure that matters now: the live generation's, or the last one.
    failure = (None if attempt is None else attempt.failure) or job.last_failure
    waits = stored.pending_reason if job.state is JobState.QUEUED else awaited(job, rows)
    return JobView.of(
        facts,
        num=job.num,
        label=job_label(job.num),
        etag=settings_tag(facts.spec),
        url=platform.job_url(job.num),
        slot_type=facts.demand.slot_type,
        slot_seconds=job.attained_slot_s,
        **_beside(beside),
        description=facts.spec.get("description") or "",
        tags=list(facts.spec.get("tags") or ()),
        group=facts.spec.get("group") or "",
        data=dict(facts.spec.get("data") or {}),
        state=job.state.value,
        reason=_reason(job.reason),
        pending_reason=None if waits is None else _reason(waits),
        goal=None if job.goal is None else job.goal.value,
        attempt=None if attempt is None else attempt.num,
        attempts=job.attempts,
        generation=None if attempt is None else attempt.generation,
        restarts=job.restarts,
        pool=None if attempt is None else attempt.placement.pool,
        num_slots=job.policy.num_slots if attempt is None else attempt.num_slots,
        world_size=world_size(stored),
        roles=_roles(stored),
        spec=None,
        submitted_at=at_of(job.submitted_at),
        started_at=at_or_none(job.started_at),
        ended_at=at_or_none(job.ended_at),
        stop_deadline_at=at_or_none(job.stop_deadline_at) if job.goal is not None else None,
        failure=_failure(failure, parts_of(stored)),
        progress=_position(stored, rows),
    )


def _beside(known: ListedFacts | None) -> dict[str, Any]:
    """The fields of a job that its row in listings has."""
    if known is None:
        return {}
    return {
        "image": known.image,
        "num_nodes": known.num_nodes,
        "cause": known.cause,
        "queue_s": known.queue_s,
        "duration_s": known.duration_s,
        "usd": usd_of(known.nano_usd) if known.nano_usd else None,
        "metric": known.metric,
        "best_metric": known.best,
        "entry_point": known.entry_point,
        "algorithm": known.algorithm,
    }


def world_size(stored: StoredJob) -> int:
    """Ranks of the live attempt, which an elastic job may have fewer of; else of the whole gang."""
    return sum(part.num_ranks for part in parts_of(stored))


def parts_of(stored: StoredJob) -> tuple[Part, ...]:
    """The rank ranges of the roles of the live attempt; else those of the whole gang."""
    attempt = stored.job.attempt
    return stored.job.policy.parts(None if attempt is None else len(attempt.placement.shares))


def nodes_of_first_ranks(stored: StoredJob) -> dict[int, str]:
    """The nodes of the live attempt, by the first rank on each; none without an attempt."""
    attempt = stored.job.attempt
    if attempt is None:
        return {}
    return {
        part.node_ranks(node_rank)[0]: attempt.placement.shares[node_rank].node
        for part in parts_of(stored)
        for node_rank in part.nodes
    }


def ranks_of(stored: StoredJob, role: str | None, ranks: Sequence[int]) -> tuple[int, ...]:
    """Ranks of the gang for a role and ranks of its world; an empty result means every rank.

    Raises UserError for a role or a rank that the job does not have.
    """
    if role is None:
        return tuple(ranks)
    parts = parts_of(stored)
    label = job_label(stored.job.num)
    part = next((one for one in parts if one.name == role), None)
    if part is None:
        known = ", ".join(one.name for one in parts)
        raise UserError(f"{label} has no role {role}", f"the roles are {known}")
    own = part.ranks_in_world
    beyond = [rank for rank in ranks if rank not in own]
    if beyond:
        counted = f"counted from {own.start}" if own.start == 0 else f"{own.start} to {own[-1]}"
        raise UserError(
            f"role {role} of {label} has no rank {beyond[0]}",
            f"the role has {part.num_ranks} ranks, {counted}",
        )
    return tuple(part.world_rank + rank for rank in ranks) if ranks else tuple(part.ranks)


def role_of(parts: Sequence[Part], rank: int) -> tuple[str, int | None]:
    """The role of a rank of the gang and the rank in its world; empty for a gang with one role."""
    part = part_of_rank(parts, rank) if len(parts) > 1 else None
    return ("", None) if part is None else (part.name, rank - part.world_rank)


def _roles(stored: StoredJob) -> list[RoleView]:
    """The roles of a gang that has several."""
    attempt = stored.job.attempt
    if not stored.job.policy.roles:
        return []
    parts = parts_of(stored)
    worlds = {part.name: world_of(parts, part) for part in parts}
    return [
        RoleView.of(
            part,
            world=worlds[part.name][0].name,
            world_size=sum(one.num_ranks for one in worlds[part.name]),
            phases=[] if attempt is None else [attempt.nodes[n].phase.value for n in part.nodes],
        )
        for part in parts
    ]


def _reason(reason: Reason) -> ReasonView:
    return ReasonView(code=reason.code.value, message=reason.message)


def _failure(failure: Failure | None, parts: Sequence[Part]) -> FailureView | None:
    if failure is None:
        return None
    part = None if failure.rank is None else part_of_rank(parts, failure.rank)
    role = ""
    if len(parts) > 1 and part is not None and failure.rank is not None:
        role = f"{part.name} {failure.rank - part.world_rank}"
    return FailureView.of(failure, cause=failure.cause.value, at=at_of(failure.at), role=role)


def _ranks(attempt: Attempt, rows: Sequence[SupervisorRow], stored: StoredJob) -> list[RankView]:
    parts = parts_of(stored)
    pids = {
        (row.node_rank, local): pid
        for row in rows
        if row.generation == attempt.generation
        for local, pid in enumerate(row.pids)
    }
    return [
        RankView(
            rank=rank,
            node_rank=node_rank,
            node=attempt.placement.shares[node_rank].node,
            pid=pids.get((node_rank, local)),
            role=part.name if len(parts) > 1 else "",
        )
        for part in parts
        for node_rank in part.nodes
        for local, rank in enumerate(part.node_ranks(node_rank))
    ]


def _nodes(attempt: Attempt, rows: Sequence[SupervisorRow]) -> list[NodeRankView]:
    known = {row.node_rank: row for row in rows}
    return [
        NodeRankView.of(
            known.get(node_rank),
            node_rank=node_rank,
            node=share.node,
            slots=list(share.slots),
            phase=attempt.nodes[node_rank].phase.value,
            last_seen_at=at_or_none(getattr(known.get(node_rank), "last_seen_at", None)),
        )
        for node_rank, share in enumerate(attempt.placement.shares)
    ]


# -- progress ------------------------------------------------------------------------------------


def _position(stored: StoredJob, rows: Sequence[SupervisorRow]) -> ProgressView:
    """Progress by heartbeats: the step that every node has reached."""
    job = stored.job
    steps = [row.step for row in rows if row.step is not None]
    epochs = [row.epoch for row in rows if row.epoch is not None]
    step = min(steps, default=None)
    known = [one for one in (job.progress.high_water_step, step) if one is not None]
    planned = [row.num_epochs for row in rows if row.num_epochs is not None]
    return ProgressView(
        step=step if job.state not in TERMINAL else max(known, default=None),
        epoch=min(epochs, default=None),
        num_epochs=max(planned, default=None),
        high_water_step=max(known, default=None),
        checkpoint_step=job.progress.checkpoint_step,
        checkpoint_path=job.progress.checkpoint_path,
    )


_NEWEST_REPORTS = 16
_NO_METRIC = ("",)


def _progress(tx: Tx, stored: StoredJob, rows: Sequence[SupervisorRow]) -> ProgressView:
    values = {
        one.name: one.value
        for one in last_values.of_job(tx, stored.job.num)
        if one.rank == 0
        and one.name not in INSTRUMENTS
        and one.value is not None
        and math.isfinite(one.value)
    }
    # Of the points only steps and times count here: with no name, no value is decoded.
    chunks = arrivals.last_chunks(
        tx, stored.job.num, num_chunks=_NEWEST_REPORTS, rank=0, names=_NO_METRIC
    )
    position = _position(stored, rows)
    if position.step is None and stored.job.is_terminal:
        done = [row.last_step for row in lineage.generations_of(tx, stored.job.num)]
        last = max((step for step in done if step is not None), default=None)
        position = position.model_copy(update={"step": last, "high_water_step": last})
    return position.model_copy(update={"last_metrics": values, "steps_per_s": steps_per_s(chunks)})


def steps_per_s(chunks: Sequence[MetricChunk]) -> float | None:
    """The pace of the newest generation, over its last reported steps."""
    ours = [
        ((chunk.attempt, chunk.generation), point)
        for chunk in chunks
        for point in chunk.points
        if point.rank == 0
    ]
    if not ours:
        return None
    same = [point for generation, point in ours if generation == ours[-1][0]]
    first, last = same[0], same[-1]
    if last.at <= first.at or last.step <= first.step:
        return None
    return (last.step - first.step) / ((last.at - first.at) / 1e6)


def event_view(one: events.StoredEvent) -> EventView:
    """An event as the API shows it."""
    reason = ReasonView(code=one.reason_code, message=one.reason_message)
    return EventView.of(one, at=at_of(one.at), reason=reason)
