"""Handlers for what happens to trials: they are submitted, start, report, pause, end, and are pinned."""

from __future__ import annotations

from phalanx.core.search import events as e
from phalanx.core.search.draft import US, StudyDraft
from phalanx.core.search.model import (
    Pin,
    SearchCode,
    SearchReason,
    StudyState,
    Trial,
    TrialResult,
    TrialStatus,
    Unpin,
)
from phalanx.core.search.rungs.arrival import arrive, hold_over
from phalanx.core.search.rungs.new_trials import runs_at

MAX_RESUBMITS = 5
"""How often a trial is submitted again after failures of infrastructure."""
MAX_LEASES = 3
"""Number of outside evaluators that may be silent about a trial before it has failed."""
_S = TrialStatus
_RUNS = SearchReason(SearchCode.RUNS)
_UNKNOWN = "the study has no such trial"


def trial_submitted(draft: StudyDraft, event: e.TrialSubmitted) -> str | None:
    """Record the job of a trial."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if trial.job == event.job:
        return "the trial's job is recorded already"
    if trial.job is not None and event.job < trial.job:
        return "the trial has a newer job"
    draft.change(trial, job=event.job)
    return None


def trial_started(draft: StudyDraft, event: e.TrialStarted) -> str | None:
    """Record that a trial's ranks run."""
    trial = draft.trial(event.trial)
    if trial is None or trial.status is not _S.WAITING:
        return "the trial is not waiting for slots"
    if trial.results and trial.queued_at is not None:
        _measure_resume(draft, (draft.now - trial.queued_at) / US)
    draft.change(trial, status=_S.RUNNING, reason=trial.reason if trial.ending else _RUNS)
    return None


def _measure_resume(draft: StudyDraft, cost_s: float) -> None:
    """Follow the cost of resumes; a short one counts more, since a long one mostly is a queue."""
    known = draft.facts.resume_cost_s
    weight = 0.5 if known is None or cost_s < known else 0.05
    cost_s = cost_s if known is None else known + weight * (cost_s - known)
    draft.note(resume_cost_s=round(cost_s, 3))


def trial_reported(draft: StudyDraft, event: e.TrialReported) -> str | None:
    """Take a report, and decide at a rung whether the trial goes on."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if trial.evaluator is not None:
        trial = _heard(draft, trial)
    if trial.is_over or trial.status in (_S.ASKED, _S.SUGGESTED):
        return f"the trial is {trial.status}"
    if trial.last is not None and event.unit <= trial.last.unit:
        return _repeated(draft, trial, event)
    if trial.status is _S.WAITING and trial.ending is None:
        trial = draft.change(trial, status=_S.RUNNING, reason=_RUNS)
    if event.value is None:
        return _diverged(draft, trial, event)
    reached = trial.until is not None and event.unit >= trial.until and not trial.at_rung
    trial = recorded(draft, trial, event.unit, event.value, event.checkpoint)
    if draft.facts.state is StudyState.STOPPING or draft.judge_target(trial):
        return None
    stop = draft.policy.early_stop
    patient = stop is None or trial.waited < stop.patience
    if not patient and trial.ending in (None, _S.PAUSED) and not trial.is_final:
        said = f"no improvement for {trial.waited} reports"
        draft.stop_trial(trial, _S.STOPPED, SearchReason(SearchCode.NO_IMPROVEMENT, said))
    elif reached:
        arrive(draft, trial)
    return None


def _heard(draft: StudyDraft, trial: Trial) -> Trial:
    """A trial after a report from outside; an evaluator that counted as lost has it again."""
    if trial.status is _S.SUGGESTED:
        reason = runs_at(trial.evaluator or "")
        return draft.lease(trial, status=_S.RUNNING, reason=reason)
    return trial if trial.lease_until is None else draft.lease(trial)


def recorded(
    draft: StudyDraft, trial: Trial, unit: int, value: float, checkpoint: str | None
) -> Trial:
    """The trial with one more report, which is its result at the rung that it has reached by it."""
    objective, stop = draft.policy.objective, draft.policy.early_stop
    better = trial.best is None or objective.oriented(value) < objective.oriented(trial.best.value)
    score = value if better or trial.best is None or objective.at == "last" else trial.best.value
    result = TrialResult(unit, value, checkpoint, score)
    changes: dict[str, object] = {"last": result}
    if trial.until is not None and unit >= trial.until and not trial.at_rung:
        changes["results"] = (*trial.results, result)
    if better:
        changes["best"] = result
    if stop is not None:
        mark = trial.mark
        if mark is None or objective.oriented(value) < objective.oriented(mark) - stop.min_delta:
            changes |= {"mark": value, "waited": 0}
        else:
            changes["waited"] = trial.waited + 1
    return draft.change(trial, **changes)


def _repeated(draft: StudyDraft, trial: Trial, event: e.TrialReported) -> str | None:
    """A unit that is trained again after a restart: the first report counts, another value is noted."""
    known = [one for one in (*trial.results, trial.last) if one and one.unit == event.unit]
    if known and known[0].value != event.value and event.value is not None:
        draft.change(trial, differs=trial.differs + 1)
        return None
    return "that unit is reported already"


def _diverged(draft: StudyDraft, trial: Trial, event: e.TrialReported) -> str | None:
    if trial.ending not in (None, _S.PAUSED):
        return f"the trial is leaving: {trial.reason}"
    said = f"{draft.policy.objective.metric or 'the objective'} is not finite at unit {event.unit}"
    draft.stop_trial(trial, _S.DIVERGED, SearchReason(SearchCode.NOT_FINITE, said))
    return None


def trial_paused(draft: StudyDraft, event: e.TrialPaused) -> str | None:
    """Record that a trial's slots are free."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if trial.is_over or trial.status not in (_S.WAITING, _S.RUNNING, _S.HELD):
        return f"the trial is {trial.status}"
    trial = _settled(draft, trial, event.slot_s, event.usd)
    if event.by_user and trial.ending is None:
        paused = SearchReason(SearchCode.PAUSE_REQUESTED, "its job was paused by a user")
        draft.change(trial, status=_S.WAITING, reason=paused, hold_until=None)
        return None
    if trial.ending not in (None, _S.PAUSED):
        # It was to end and has paused instead: it is out of its slots, which is what counts.
        draft.finish_trial(trial, trial.ending or _S.STOPPED, trial.reason)
        return None
    checkpoint = event.checkpoint or (trial.last.checkpoint if trial.last else None)
    if checkpoint is not None and checkpoint != trial.pinned:
        draft.command(Pin(trial.number, checkpoint))
    changes = {"ending": None, "hold_until": None, "reserved_s": 0.0}
    draft.change(trial, status=_S.PAUSED, **changes)
    return None


def _settled(draft: StudyDraft, trial: Trial, slot_s: float, usd: float) -> Trial:
    """The trial with what its jobs have used so far; totals never shrink."""
    if slot_s <= trial.slot_s and usd <= trial.usd:
        return trial
    return draft.change(
        trial,
        slot_s=max(slot_s, trial.slot_s),
        usd=max(usd, trial.usd),
        settled_unit=0 if trial.last is None else trial.last.unit,
    )


def trial_ended(draft: StudyDraft, event: e.TrialEnded) -> str | None:
    """Give a trial its last status when its job is over, or submit it again."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if trial.is_over or (event.job is not None and event.job != trial.job):
        return settle(draft, event)
    if trial.status in (_S.ASKED, _S.SUGGESTED):
        return f"the trial is {trial.status}"
    trial = _settled(draft, trial, event.slot_s, event.usd)
    if event.outcome is e.TrialOutcome.INFRASTRUCTURE and trial.ending in (None, _S.PAUSED):
        _resubmit(draft, trial, event.reason)
        return None
    status, reason = _end_of(draft, trial, event)
    draft.finish_trial(trial, status, reason)
    draft.judge_failures()
    return None


def settle(draft: StudyDraft, event: e.TrialEnded) -> str | None:
    """Count what a trial that is over has used."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if event.slot_s <= trial.slot_s and event.usd <= trial.usd:
        return "the trial is over"
    _settled(draft, trial, event.slot_s, event.usd)
    return None


def _resubmit(draft: StudyDraft, trial: Trial, said: str) -> None:
    """Submit a trial again that lost its job to infrastructure; its results stand."""
    if trial.resubmits >= MAX_RESUBMITS:
        said = f"its job ended {MAX_RESUBMITS + 1} times by infrastructure: {said}"
        draft.finish_trial(trial, _S.STOPPED, SearchReason(SearchCode.INFRASTRUCTURE, said))
    elif draft.facts.state is StudyState.STOPPING:
        draft.finish_trial(trial, _S.STOPPED, SearchReason(SearchCode.STUDY_ENDED, said))
    else:
        draft.lose_job(trial, said)


def _end_of(
    draft: StudyDraft, trial: Trial, event: e.TrialEnded
) -> tuple[TrialStatus, SearchReason]:
    """The last status of a trial, and its reason."""
    outcome = event.outcome
    if trial.ending not in (None, _S.PAUSED):
        has_successor = trial.reason.code is SearchCode.REPLACED
        if outcome is e.TrialOutcome.REJECTED and not has_successor:
            return _S.REJECTED, SearchReason(SearchCode.CALLED_INVALID, event.reason)
        return trial.ending or _S.STOPPED, trial.reason
    if outcome is e.TrialOutcome.SUCCEEDED:
        if trial.last is None:
            said = event.reason or f"it never reported {draft.policy.objective.metric}"
            return _S.FAILED, SearchReason(SearchCode.NO_METRIC, said)
        return _S.COMPLETED, SearchReason(SearchCode.ENDED_BY_ITSELF, event.reason)
    if outcome is e.TrialOutcome.REJECTED:
        return _S.REJECTED, SearchReason(SearchCode.CALLED_INVALID, event.reason)
    if outcome is e.TrialOutcome.FAILED:
        return _S.FAILED, SearchReason(SearchCode.JOB_FAILED, event.reason)
    return _S.STOPPED, SearchReason(SearchCode.JOB_STOPPED, event.reason)


def checkpoint_pinned(draft: StudyDraft, event: e.CheckpointPinned) -> str | None:
    """Record a pin; the one before is released."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if trial.pinned == event.checkpoint:
        return "that checkpoint is pinned already"
    if trial.is_over:
        draft.command(Unpin(trial.number, event.checkpoint))
        return None
    earlier = trial.pinned
    trial = draft.change(trial, pinned=event.checkpoint)
    if earlier is not None:
        draft.unpin(trial, earlier)
    elif trial.fork_of is not None:
        draft.release_parent(trial)
    return None


def hold_elapsed(draft: StudyDraft, event: e.HoldElapsed) -> str | None:
    """End the time for which a trial keeps its slots at a rung, or its evaluator may be silent."""
    trial = draft.trial(event.trial)
    if trial is None:
        return _UNKNOWN
    if trial.lease_until is not None and draft.now >= trial.lease_until:
        _lose_evaluator(draft, trial)
        return None
    if trial.status is not _S.HELD or trial.hold_until is None:
        return "the trial is not held"
    if draft.now < trial.hold_until:
        return "the hold is not over"
    hold_over(draft, trial)
    return None


def _lose_evaluator(draft: StudyDraft, trial: Trial) -> None:
    """Keep a trial for the next evaluator that asks, as this one is silent; a few times."""
    silent = f"{trial.evaluator or 'its evaluator'} was silent for {trial.lease_s:g} s"
    lost = trial.resubmits + 1
    if lost >= MAX_LEASES:
        said = f"{silent}, as {lost - 1} before it"
        draft.finish_trial(trial, _S.FAILED, SearchReason(SearchCode.EVALUATOR_SILENT, said))
        draft.judge_failures()
        return
    draft.change(
        trial,
        status=_S.SUGGESTED,
        reason=SearchReason(SearchCode.EVALUATOR_SILENT, silent),
        hold_until=None,
        lease_until=None,
        resubmits=lost,
    )
