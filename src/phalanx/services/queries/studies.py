"""Views of studies and their trials, from rows; only the rungs of one study need its events."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.core.cost.ledger import WASTED
from phalanx.core.cost.totals import Totals, added
from phalanx.core.search.model import (
    STUDY_OVER,
    RungPolicy,
    Study,
    StudyState,
    TrialStatus,
)
from phalanx.core.search.observations import learning_rung, observations
from phalanx.core.search.space import ChoiceParameter, ConstantParameter, Parameter
from phalanx.kit.text import study_label, trial_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.jobs import ReasonView
from phalanx.schemas.api.studies import (
    AskResponse,
    AxisView,
    FinalView,
    LineView,
    ObjectiveView,
    RungView,
    StudyCostView,
    StudyEventPage,
    StudyEventView,
    StudyPage,
    StudyResultsView,
    StudyView,
    TrialOriginView,
    TrialPage,
    TrialView,
    TrialWasteView,
)
from phalanx.search.importance import importance
from phalanx.services.ledger.accounts import cost_of_trials
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.studies import log, rows
from phalanx.store.studies.rows import StoredStudy, StudyFilter, TrialRow

_PAGE = 1000
_US = 1_000_000
# Statuses of trials that may have ended before the last rung, with a result.
_ENDED_EARLY = frozenset({TrialStatus.STOPPED, TrialStatus.COMPLETED})
# Statuses of trials that ended without a result of use.
_WASTED = ("failed", "diverged", "rejected")


def trial_view(row: TrialRow, spent: Mapping[int, Totals] | None = None) -> TrialView:
    """One trial as it is listed; `spent` is what the trials of its study used, by number."""
    origin = row.origin
    return TrialView(
        study=row.study,
        number=row.trial,
        label=trial_label(row.study, row.trial),
        params=dict(row.params),
        origin=TrialOriginView(**origin),
        status=row.status,
        reason=row.reason,
        job=row.job,
        rung=row.rung,
        unit=row.unit,
        until=row.until,
        value=row.value,
        checkpoint=row.checkpoint,
        slot_s=row.slot_s,
        usd=row.usd or None,
        waste=None if spent is None or row.job is None else _waste(spent.get(row.trial, Totals())),
        submitted_at=at_of(row.submitted_at),
        started_at=at_or_none(row.started_at),
        ended_at=at_or_none(row.ended_at),
    )


def _waste(spent: Totals) -> TrialWasteView:
    return TrialWasteView(**{one.value: spent.slot_us.get(one, 0) / _US for one in WASTED})


def _spent(platform: Platform, tx: Tx, num: int, now: int) -> dict[int, Totals]:
    """What the jobs of a study's trials have used up to now, by trial."""
    waiting, holding = platform.scheduler_cache.rows.jobs(tx)
    return cost_of_trials(tx, num, [*waiting, *holding], now)


def _study_view(tx: Tx, stored: StoredStudy) -> StudyView:
    header, progress, spec = stored.header, stored.progress, stored.header.spec
    best = None
    if progress.best_trial is not None:
        best = trial_view(rows.trial(tx, header.num, progress.best_trial))
    objective, budget = spec["objective"], spec.get("budget") or {}
    wasted_s = rows.slot_seconds_of(tx, header.num, _WASTED)
    return StudyView(
        num=header.num,
        label=study_label(header.num),
        name=header.name,
        project=header.project,
        owner=header.owner,
        labels=dict(header.labels),
        state=progress.state,
        reason=ReasonView(code=progress.reason_code, message=progress.reason_message),
        method=spec["search"]["method"],
        objective=ObjectiveView(
            metric=objective["metric"],
            goal=objective["goal"],
            at=objective["at"],
            target=objective.get("target"),
        ),
        max_trials=progress.max_trials,
        parallel=progress.parallel,
        trials=dict(progress.counts),
        best=best,
        cost=StudyCostView(
            slot_hours=progress.slot_s / 3600,
            wasted_slot_hours=wasted_s / 3600,
            usd=progress.usd or None,
            max_slot_hours=budget.get("slot_hours"),
            max_usd=budget.get("usd"),
        ),
        submitted_at=at_of(header.submitted_at),
        started_at=at_or_none(progress.started_at),
        ended_at=at_or_none(progress.ended_at),
    )


def study_view(platform: Platform, num: int, now: int) -> StudyView:
    """One study, with its rungs, its expected end and its spec. Raises NotFound."""
    return platform.store.view(lambda tx: _whole_view(platform, tx, num, now)[0])


def _whole_view(platform: Platform, tx: Tx, num: int, now: int) -> tuple[StudyView, Study]:
    stored = rows.load(tx, num)
    view = _study_view(tx, stored)
    study = platform.studies.study(tx, stored)
    more: dict[str, Any] = {"spec": dict(stored.header.spec), "rungs": _rungs(study)}
    more["final"] = _final(study)
    spent = added(_spent(platform, tx, num, now).values())
    parts: dict[str, float | None] = {
        f"{one.value}_slot_hours": spent.slot_us.get(one, 0) / _US / 3600 for one in WASTED
    }
    parts["saved_slot_hours"] = saved_slot_hours(study)
    more["cost"] = view.cost.model_copy(update=parts)
    more["eta_at"] = at_or_none(expected_end(study, stored.progress.started_at, now))
    return view.model_copy(update=more), study


def saved_slot_hours(study: Study) -> float | None:
    """Slot-hours that trials which ended early did not use, at the mean cost of a unit so far.

    None for a study without rungs, or before anything was used.
    """
    index, levels = study.index, study.policy.levels
    if study.policy.rungs is None or not index.units:
        return None
    left = sum(
        levels[-1] - one.last.unit
        for one in study.trials
        if one.last is not None and one.status in _ENDED_EARLY and not one.is_final
    )
    return left * index.used_us / index.units / 3.6e9


def expected_end(study: Study, started_at: int | None, now: int) -> int | None:
    """When the study is expected to end at its mean speed so far; None while that is not known."""
    limit = study.index.counted if study.facts.exhausted else study.policy.max_trials
    if study.state is not StudyState.RUNNING or started_at is None or limit is None:
        return None
    if study.facts.finals or study.policy.population is not None:
        return None
    # With rungs, the units of all trials against those that one trial of `eta` going on would take.
    rungs = study.policy.rungs
    if rungs is not None:
        done = float(sum(one.last.unit for one in study.trials if one.last is not None))
        whole = _expected_units(rungs, limit)
    else:
        done = float(sum(one.is_over and one.queued_at is not None for one in study.trials))
        whole = float(limit)
    if not 0 < done < whole:
        return None
    # What runs has on average done half of what it will report next; without it, the first
    # estimates of a study with many trials at the same time would be far too late.
    under_way = sum(one.status is TrialStatus.RUNNING for one in study.trials) / 2
    done = min(done + under_way, whole)
    return now + round((now - started_at) * (whole - done) / done)


def _expected_units(rungs: RungPolicy, trials: int) -> float:
    if rungs.rule in ("median", "percentile"):
        return float(trials * rungs.max)
    share, before, whole = float(trials), 0, 0.0
    for level in rungs.levels:
        whole, before = whole + max(share, 1.0) * (level - before), level
        share /= rungs.eta
    return whole


def study_results(platform: Platform, num: int, now: int) -> StudyResultsView:
    """What a study has found. Raises NotFound."""
    view, study = platform.store.view(lambda tx: _whole_view(platform, tx, num, now))
    space, told = study.policy.space, observations(study)
    shares = importance(space, told)
    names = sorted(space.searched, key=lambda name: -shares.get(name, 0.0))
    known = [one for one in told if one.value is not None and math.isfinite(one.value)]
    rung = learning_rung(study)
    ended = {TrialStatus.FAILED, TrialStatus.DIVERGED, TrialStatus.REJECTED}
    return StudyResultsView(
        study=view,
        unit=None if rung is None else study.policy.levels[rung],
        axes=[_axis(name, space.parameters[name], shares.get(name)) for name in names],
        lines=[
            LineView(
                trial=one.number,
                value=study.policy.objective.oriented(one.value or 0.0),
                places=[
                    space.parameters[name].unit_of(one.params[name]) if name in one.params else None
                    for name in names
                ],
            )
            for one in known
            if study.trials[one.number].status not in ended
        ],
    )


def _axis(name: str, one: Parameter, share: float | None) -> AxisView:
    values = list(one.values) if isinstance(one, ChoiceParameter) else None
    bounds = None if isinstance(one, ChoiceParameter | ConstantParameter) else (one.low, one.high)
    return AxisView(
        name=name,
        kind=one.kind,
        log=bool(getattr(one, "log", False)),
        low=bounds and bounds[0],
        high=bounds and bounds[1],
        values=values,
        importance=share,
    )


def _rungs(study: Study) -> list[RungView]:
    levels = study.policy.levels
    if study.policy.rungs is None:
        return []
    reached: dict[tuple[int, int], list[int]] = {}
    for trial in study.trials:
        for index in range(len(trial.results)):
            rung = trial.first_rung + index
            here = reached.setdefault((trial.bracket, rung), [0, 0])
            here[0] += 1
            here[1] += trial.rung > rung
    return [
        RungView(bracket=bracket, until=levels[rung], reported=reported, promoted=promoted)
        for (bracket, rung), (reported, promoted) in sorted(reached.items())
    ]


def _final(study: Study) -> FinalView | None:
    """The last retraining of the best; None before there is one."""
    seeds = 0 if study.policy.final is None else study.policy.final.seeds
    found = [one for one in study.trials if one.is_final][-seeds:] if seeds else []
    if not found:
        return None
    ended = [one for one in found if one.status is TrialStatus.COMPLETED]
    values = [one.score for one in ended if one.score is not None]
    return FinalView(
        trials=[one.number for one in found],
        jobs=[one.job for one in found if one.job is not None],
        values=values,
        mean=statistics.fmean(values) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 else None,
    )


def list_studies(
    platform: Platform, wanted: StudyFilter, *, before: int | None, limit: int
) -> StudyPage:
    """One page of studies, newest first."""

    def work(tx: Tx) -> StudyPage:
        found = rows.page(tx, wanted, before=before, limit=limit)
        more = found[-1].header.num if len(found) == limit else None
        return StudyPage(studies=[_study_view(tx, one) for one in found], next=more)

    return platform.store.view(work)


def list_trials(
    platform: Platform, num: int, now: int, *, after: int, limit: int, statuses: tuple[str, ...]
) -> TrialPage:
    """One page of a study's trials, in number order. Raises NotFound."""

    def work(tx: Tx) -> TrialPage:
        rows.load(tx, num)
        found = rows.trials_of(tx, num, after=after, limit=limit, statuses=statuses)
        more = found[-1].trial if len(found) == limit else None
        spent = _spent(platform, tx, num, now)
        return TrialPage(trials=[trial_view(one, spent) for one in found], next=more)

    return platform.store.view(work)


def show_trial(platform: Platform, num: int, number: int) -> TrialView:
    """One trial. Raises NotFound."""
    return trial_view(platform.store.view(lambda tx: rows.trial(tx, num, number)))


def asked_trials(platform: Platform, num: int, numbers: Sequence[int]) -> AskResponse:
    """Those of an evaluator's trials that have params and are not over. Raises NotFound."""

    def work(tx: Tx) -> AskResponse:
        stored = rows.load(tx, num)
        found = list(rows.some_trials(tx, [(num, number) for number in numbers]).values())
        found.sort(key=lambda one: one.trial)
        ready = [one for one in found if one.status in ("running", "held")]
        return AskResponse(
            trials=[trial_view(one) for one in ready],
            waiting=sum(one.status == "asked" for one in found),
            done=StudyState(stored.progress.state) in STUDY_OVER,
            state=stored.progress.state,
            cursor=stored.last_seq,
        )

    return platform.store.view(work)


def study_event_page(platform: Platform, num: int, *, after: int) -> StudyEventPage:
    """A study's events behind `after`. Raises NotFound."""

    def work(tx: Tx) -> StudyEventPage:
        stored = rows.load(tx, num)
        found = log.of_study(tx, num, after=after, limit=_PAGE)
        cursor = found[-1].seq if found else after
        over = StudyState(stored.progress.state) in STUDY_OVER
        done = over and cursor >= stored.last_seq
        return StudyEventPage(events=[_event(one) for one in found], cursor=cursor, done=done)

    return platform.store.view(work)


def _event(one: log.StoredStudyEvent) -> StudyEventView:
    return StudyEventView(
        study=one.study,
        seq=one.seq,
        at=at_of(one.at),
        kind=one.kind,
        trial=one.trial,
        state=one.reason["state"],
        reason=ReasonView(code=one.reason["code"], message=one.reason["message"]),
        data=one.data,
    )
