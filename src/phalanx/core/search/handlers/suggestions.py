"""Handlers for params of trials: Suggested, SuggestionFailed, TrialAdded, TrialAsked, TrialTold."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.search import events as e
from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.index import with_limits
from phalanx.core.search.model import (
    Ask,
    SearchCode,
    SearchReason,
    StudyState,
    Trial,
    TrialResult,
    TrialStatus,
)
from phalanx.core.search.rungs.new_trials import known_params, new_trial, take_params
from phalanx.core.search.rungs.population import explored

MAX_FAILED_ASKS = 3
"""Failures of the sampler in a row after which a study fails."""
MAX_DUPLICATES = 50
"""Suggestions in a row that repeat earlier params, after which the space counts as exhausted."""
_S = TrialStatus


def suggested(draft: StudyDraft, event: e.Suggested) -> str | None:
    """Take the params of a trial; the first answer counts."""
    trial = draft.trial(event.trial)
    if trial is None or trial.status is not _S.ASKED:
        return "that trial's params are not asked for, or are known already"
    if draft.policy.duplicates == "never" and trial.origin.parent is None:
        twin = known_params(draft, event.params)
        if twin is not None:
            return _refuse_duplicate(draft, trial, twin)
    draft.note(failed_asks=0)
    origin = replace(event.origin, parent=trial.origin.parent, step=trial.origin.step)
    take_params(draft, trial, event.params, origin=origin)
    return None


def _refuse_duplicate(draft: StudyDraft, trial: Trial, twin: int) -> str | None:
    """Drop a trial that repeats the params of another; another one is asked for in its place."""
    repeats = draft.facts.failed_asks + 1
    draft.note(failed_asks=repeats, exhausted=draft.facts.exhausted or repeats >= MAX_DUPLICATES)
    reason = SearchReason(SearchCode.DUPLICATE, f"the same params as trial {twin}")
    draft.finish_trial(trial, _S.STOPPED, reason)
    return None


def suggestion_failed(draft: StudyDraft, event: e.SuggestionFailed) -> str | None:
    """Ask again, a few times; or note that the space has no more params."""
    trial = draft.trial(event.trial)
    if trial is None or trial.status is not _S.ASKED:
        return "that trial's params are not asked for, or are known already"
    if trial.origin.parent is not None:
        # A fork has the place of a member that was stopped: without an answer it takes changed params.
        take_params(draft, trial, explored(draft, trial.number, trial.origin.parent))
        return None
    if event.exhausted:
        draft.note(exhausted=True)
        draft.finish_trial(trial, _S.STOPPED, SearchReason(SearchCode.EXHAUSTED, event.reason))
        return None
    failed = draft.facts.failed_asks + 1
    draft.note(failed_asks=failed)
    if failed >= MAX_FAILED_ASKS:
        said = f"the sampler failed {failed} times in a row: {event.reason}"
        draft.end(StudyState.FAILED, SearchCode.NO_SUGGESTION, said)
    else:
        draft.command(Ask(trial.number))
    return None


def trial_added(draft: StudyDraft, event: e.TrialAdded) -> str | None:
    """Add a trial with given params, and raise the limit of trials for it."""
    limit = draft.policy.max_trials
    if limit is not None:
        draft.set_policy(with_limits(draft.policy, max_trials=limit + 1))
    trial = draft.add(new_trial(draft, event.origin))
    take_params(draft, trial, event.params)
    return None


def trial_asked(draft: StudyDraft, event: e.TrialAsked) -> str | None:
    """Have a trial suggested for an evaluator outside the platform."""
    limit = draft.policy.max_trials
    if draft.facts.exhausted or (limit is not None and draft.index.counted >= limit):
        return "the study has no more trials"
    waiting = draft.index.suggested.first()
    if waiting is not None:
        trial = draft.change(draft.trials[waiting], evaluator=event.evaluator)
        take_params(draft, trial, trial.params)
        return None
    trial = draft.add(new_trial(draft, evaluator=event.evaluator))
    draft.command(Ask(trial.number))
    return None


def trial_told(draft: StudyDraft, event: e.TrialTold) -> str | None:
    """Take the result of an evaluator outside the platform."""
    trial = draft.trial(event.trial)
    if trial is None or trial.evaluator is None:
        return "no outside evaluator has that trial"
    if trial.is_over or trial.status is _S.ASKED:
        return "that trial is over, or has no params yet"
    if event.value is not None:
        unit = 1 if trial.last is None else trial.last.unit + 1
        value = event.value
        result = TrialResult(unit, value, None, value)
        trial = draft.change(trial, last=result, best=result)
    status, code = _TOLD[event.outcome]
    if status is _S.COMPLETED and event.value is None:
        status, code = _S.DIVERGED, SearchCode.NOT_FINITE
    trial = draft.finish_trial(trial, status, SearchReason(code, event.reason))
    draft.judge_target(trial)
    return None


_TOLD = {
    e.TrialOutcome.SUCCEEDED: (_S.COMPLETED, SearchCode.ENDED_BY_ITSELF),
    e.TrialOutcome.FAILED: (_S.FAILED, SearchCode.JOB_FAILED),
    e.TrialOutcome.INFRASTRUCTURE: (_S.STOPPED, SearchCode.INFRASTRUCTURE),
    e.TrialOutcome.REJECTED: (_S.REJECTED, SearchCode.CALLED_INVALID),
    e.TrialOutcome.STOPPED: (_S.STOPPED, SearchCode.JOB_STOPPED),
}
