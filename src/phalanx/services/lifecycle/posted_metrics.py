"""Metrics that scripts without the library send to the API, and the answer whether they should stop."""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.core.contract.records import MetricPoint
from phalanx.core.contract.reporting import ReportingPlace
from phalanx.core.contract.trial import TrialContract
from phalanx.core.gang.roles import part_at
from phalanx.core.jobs.desired import SUPERSEDED, StopAdvice, stop_advice
from phalanx.errors import Unauthenticated, UserError
from phalanx.schemas.api.telemetry import PostedPoint, StopAnswer, TrainerStatus
from phalanx.schemas.wire.supervision import TrialReport
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.lifecycle.reports import Inbox, read_report, record_step
from phalanx.services.platform import Platform
from phalanx.store import jobs, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.metrics import arrivals
from phalanx.store.studies import trial_reports

MAX_NAMES = 10_000
"""Names of metrics that one job may have for more to be added here."""
# Names under which `Trainer` sends what is no metric of the model.
_STEP, _EPOCH = "current_step", "current_epoch"


@dataclass(frozen=True, slots=True)
class Posted:
    """Some values of one step."""

    step: int | None  # None: the newest known one
    epoch: int | None  # epochs that are complete
    at: int | None  # µs UTC on the clock of the rank; None: now
    values: Mapping[str, float]  # by name; also such that are not finite


def posted_points(points: Iterable[PostedPoint]) -> list[Posted]:
    """The points of a request, those of one step and time together, in their order."""
    found: dict[tuple[int, int | None, int | None], dict[str, float]] = {}
    for one in points:
        at = None if one.at is None else round(one.at.timestamp() * 1_000_000)
        found.setdefault((one.step, one.epoch, at), {})[one.name] = float(one.value)
    return [Posted(*key, values) for key, values in found.items()]


def trainer_status(status: TrainerStatus) -> list[Posted]:
    """What a client of Kubeflow Trainer reports. Raises UserError for a value that is no number."""
    values: dict[str, float] = {}
    for one in status.metrics:
        try:
            values[one.name] = float(one.value)
        except ValueError:
            raise UserError(f"metric {one.name!r}: {one.value!r} is not a number") from None
    step, epoch = _count(values.pop(_STEP, None)), _count(values.get(_EPOCH))
    if status.progressPercentage is not None:
        values["progress_percent"] = float(status.progressPercentage)
    if status.estimatedRemainingSeconds is not None:
        values["remaining_s"] = float(status.estimatedRemainingSeconds)
    return [Posted(step, epoch, None, values)] if values else []


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**53 else None


def post_metrics(
    platform: Platform, num: int, token: str, rank: int | None, posted: list[Posted], now: int
) -> StopAnswer:
    """Store the metrics of one rank, and say whether it should stop.

    `rank` counts in the gang; None: the first one of the node that the token is for. Raises Unauthenticated
    for a token that is not of this job, and UserError for a rank of another node or too many names.
    """
    place = _place(platform, num, token)

    def work(tx: Tx) -> StopAdvice:
        stored = jobs.find(tx, num, lock=False)
        if stored is None:
            raise _wrong()
        advice = _advice(stored, place)
        if posted and advice.code != SUPERSEDED:
            _store(tx, stored, place, _rank_of(stored, place, rank), posted, now)
        return advice

    advice = platform.store.transact(work) if posted else platform.store.view(work)
    left_s = None if advice.deadline_at is None else max(0.0, (advice.deadline_at - now) / 1e6)
    return StopAnswer(stop=advice.stop, reason=advice.code, message=advice.message, left_s=left_s)


def _wrong() -> Unauthenticated:
    return Unauthenticated(
        "this is not the token of that job",
        "ranks find their token in PHALANX_METRICS_TOKEN",
    )


def _place(platform: Platform, num: int, token: str) -> ReportingPlace:
    """The place that a right token names. Raises Unauthenticated."""
    place = ReportingPlace.named_by(token)
    if place is None or place.job != num:
        raise _wrong()
    right = place.token(platform.supervisor_token(place.job, place.attempt, place.incarnation))
    if not hmac.compare_digest(right.encode(), token.encode()):
        raise _wrong()
    return place


def _advice(stored: StoredJob, place: ReportingPlace) -> StopAdvice:
    attempt = stored.job.attempt
    if attempt is not None and place.node_rank >= len(attempt.nodes):
        raise _wrong()
    return stop_advice(stored.job, place.attempt, place.generation, place.node_rank)


def _rank_of(stored: StoredJob, place: ReportingPlace, rank: int | None) -> int:
    part = part_at(stored.job.parts_now(), place.node_rank)
    ranks = part.node_ranks(place.node_rank)
    if rank is not None and rank not in ranks:
        raise UserError(f"rank {rank} does not run on the node of this token: {ranks}")
    return ranks.start if rank is None else rank


def _store(
    tx: Tx,
    stored: StoredJob,
    place: ReportingPlace,
    rank: int,
    posted: list[Posted],
    now: int,
) -> None:
    num = place.job
    supervisor = (num, place.attempt, place.node_rank, place.incarnation)
    known = supervisors.find(tx, supervisor)
    if known is None:
        raise _wrong()
    _bound_names(tx, num, posted)
    same = known.generation == place.generation
    newest = (known.step if same else None) or 0
    offset = known.clock_offset_us or 0
    inbox = Inbox(tx, num, place.attempt, place.node_rank, now, offset)
    points = [
        MetricPoint(
            rank,
            newest if one.step is None else one.step,
            now if one.at is None else inbox.ours(one.at),
            {name: value for name, value in one.values.items() if math.isfinite(value)},
        )
        for one in posted
    ]
    key = inbox.key(place.generation)
    arrivals.add_points(inbox.tx, key, [one for one in points if one.values])
    part = part_at(stored.job.parts_now(), place.node_rank)
    if part.leads:
        for point in points:
            record_step(inbox, place.generation, point.step, point.at)
        if rank == 0:
            _read_results(inbox, stored, place.generation, list(zip(points, posted, strict=True)))
    last = max(point.step for point in points)
    if same and (known.step is None or last > known.step):
        supervisors.update(tx, supervisor, step=last)
    inbox.flush()
    if inbox.events:
        commit_events(tx, num, inbox.events, now, f"rank:{rank}")


def _bound_names(tx: Tx, num: int, posted: list[Posted]) -> None:
    """Raise UserError where the names of a job's metrics would become too many."""
    known = set(arrivals.names_of(tx, num))
    fresh = {name for one in posted for name in one.values} - known
    if fresh and len(known) + len(fresh) > MAX_NAMES:
        raise UserError(
            f"the job has {len(known)} names of metrics, and may have {MAX_NAMES}",
            "put what changes into the step or the value, not into the name",
        )


def _read_results(
    inbox: Inbox, stored: StoredJob, generation: int, found: list[tuple[MetricPoint, Posted]]
) -> None:
    """The reports of a trial among the metrics: those with the objective of its study."""
    trial = contract_of(stored.facts).trial
    if trial is None or not trial.is_trial:
        return
    last = trial_reports.last_unit(inbox.tx, inbox.job)
    for point, posted in found:
        unit = _unit(trial, point, posted)
        value = posted.values.get(trial.objective)
        if value is None or unit is None or unit <= last:
            continue
        last = unit
        fields: dict[str, Any] = {
            "value": _plain(value),
            "metrics": {name: _plain(one) for name, one in posted.values.items()},
        }
        at = point.at - inbox.offset_us  # `ours` adds it again
        report = TrialReport(seq=0, generation=generation, unit=unit, at=at, **fields)
        read_report(inbox, report)


def _unit(trial: TrialContract, point: MetricPoint, posted: Posted) -> int | None:
    if trial.unit == "step":
        return point.step
    if trial.unit == "epoch":
        return posted.epoch
    return _count(posted.values.get(trial.unit))


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
