"""Handlers for params of trials: Suggested, SuggestionFailed, TrialAdded, TrialAsked, TrialTold."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.search import events as e
from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.handlers.lives import recorded
from phalanx.core.search.index import with_limits
from phalanx.core.search.model import (
    Ask,
    Origin,
    SearchCode,
    SearchReason,
    StudyState,
    Trial,
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
    """Give an evaluator outside the platform a trial: one that waits, else a new one."""
    evaluator, lease_s = event.evaluator, event.lease_s
    waiting = draft.index.suggested.first()
    if waiting is not None:
        trial = draft.change(draft.trials[waiting], evaluator=evaluator, lease_s=lease_s)
        take_params(draft, trial, trial.params)
        return None
    limit, given = draft.policy.max_trials, draft.policy.start_with
    if draft.facts.exhausted or (limit is not None and draft.index.counted >= limit):
        return "the study has no more trials"
    trial = draft.add(replace(new_trial(draft), evaluator=evaluator, lease_s=lease_s))
    if trial.number < len(given) and known_params(draft, given[trial.number]) is None:
        origin = Origin("user", reason="given with the study")
        take_params(draft, trial, given[trial.number], origin=origin)
    else:
        draft.command(Ask(trial.number))
    return None


def trial_told(draft: StudyDraft, event: e.TrialTold) -> str | None:
    """Take the result of an evaluator outside the platform; the first one counts."""
    trial = draft.trial(event.trial)
    if trial is None or trial.evaluator is None:
        return "no outside evaluator has that trial"
    if trial.is_over or trial.status is _S.ASKED:
        return "that trial is over, or has no params yet"
    if event.value is not None:
        levels = draft.policy.levels
        unit = trial.last.unit if trial.last else levels[-1] if levels else 1
        trial = recorded(draft, trial, unit, event.value, None)
    status, code = _TOLD[event.outcome]
    said = event.reason
    if status is _S.COMPLETED and event.value is None:
        status, code = _S.DIVERGED, SearchCode.NOT_FINITE
        said = said or f"{draft.policy.objective.metric or 'the objective'} is not finite"
    trial = draft.finish_trial(trial, status, SearchReason(code, said))
    draft.judge_failures()
    if status is _S.COMPLETED:
        draft.judge_target(trial)
    return None


_TOLD = {
    e.TrialOutcome.SUCCEEDED: (_S.COMPLETED, SearchCode.ENDED_BY_ITSELF),
    e.TrialOutcome.FAILED: (_S.FAILED, SearchCode.JOB_FAILED),
    e.TrialOutcome.INFRASTRUCTURE: (_S.STOPPED, SearchCode.INFRASTRUCTURE),
    e.TrialOutcome.REJECTED: (_S.REJECTED, SearchCode.CALLED_INVALID),
    e.TrialOutcome.STOPPED: (_S.STOPPED, SearchCode.JOB_STOPPED),
}
