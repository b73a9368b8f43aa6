"""Handlers for what users ask of a study, and for its budget and clock."""

from __future__ import annotations

from phalanx.core.search import events as e
from phalanx.core.search.draft import US, StudyDraft
from phalanx.core.search.index import with_limits
from phalanx.core.search.model import (
    SearchCode,
    SearchReason,
    StudyBudget,
    StudyState,
    TrialStatus,
)


def study_paused(draft: StudyDraft, event: e.StudyPaused) -> str | None:
    """Have every trial save and leave its slots."""
    reason = SearchReason(SearchCode.PAUSE_REQUESTED, event.reason)
    draft.note(state=StudyState.PAUSED, reason=reason, paused_at=draft.now)
    for number in list(draft.index.placed):
        trial = draft.trials[number]
        if trial.ending is None and trial.evaluator is None:
            draft.pause_trial(trial)
    return None


def study_resumed(draft: StudyDraft, event: e.StudyResumed) -> str | None:
    """Go on; the time of the pause does not count against the study's duration."""
    facts = draft.facts
    deadline_at = facts.deadline_at
    if deadline_at is not None and facts.paused_at is not None:
        deadline_at += draft.now - facts.paused_at
    reason = SearchReason(SearchCode.RESUME_REQUESTED)
    draft.note(state=StudyState.RUNNING, reason=reason, paused_at=None, deadline_at=deadline_at)
    draft.stirred = True
    return None


def study_extended(draft: StudyDraft, event: e.StudyExtended) -> str | None:
    """Raise limits; a study that has ended goes on."""
    budget = draft.policy.budget
    raised = StudyBudget(
        budget.slot_hours if event.slot_hours is None else event.slot_hours,
        budget.usd if event.usd is None else event.usd,
        budget.duration_s if event.duration_s is None else event.duration_s,
    )
    draft.set_policy(
        with_limits(
            draft.policy,
            max_trials=event.max_trials,
            parallel=event.parallel,
            failures=event.failures,
            budget=raised,
        )
    )
    if draft.facts.exhausted and draft.facts.verdict is not None and not draft.facts.finals:
        draft.note(exhausted=False, verdict=None)  # a stop that let trials finish is withdrawn
    if event.duration_s is not None:
        draft.note(deadline_at=draft.now + round(event.duration_s * US))
    return None


def study_reopened(draft: StudyDraft, event: e.StudyExtended) -> str | None:
    """Let a study that has ended go on with higher limits; its duration begins anew."""
    study_extended(draft, event)
    duration_s = draft.policy.budget.duration_s
    draft.note(
        state=StudyState.RUNNING,
        reason=SearchReason(SearchCode.EXTENDED),
        ending=None,
        ended_at=None,
        exhausted=False,
        finals=False,
        verdict=None,
        failed_asks=0,
        deadline_at=None if duration_s is None else draft.now + round(duration_s * US),
    )
    return None


def study_stopped(draft: StudyDraft, event: e.StudyStopped) -> str | None:
    """End the study at a user's request; trials that have begun may finish first."""
    if event.finish:
        return _begin_no_more(draft, event.reason)
    draft.end(StudyState.CANCELLED, SearchCode.STOP_REQUESTED, event.reason)
    return None


def _begin_no_more(draft: StudyDraft, said: str) -> str | None:
    """Begin no more trials; forks go on, as members of a population are compared with them."""
    if draft.facts.state is StudyState.PAUSED:
        return "the study is paused"
    reason = SearchReason(SearchCode.STOP_REQUESTED, f"{said}; trials that have begun finish")
    draft.note(exhausted=True, verdict=draft.facts.verdict or reason, reason=reason)
    for number in (*draft.index.asked, *draft.index.suggested):
        if draft.trials[number].origin.parent is None and not draft.facts.finals:
            draft.change(draft.trials[number], status=TrialStatus.STOPPED, reason=reason)
    draft.stirred = True
    return None


def budget_spent(draft: StudyDraft, event: e.BudgetSpent) -> str | None:
    """Note what all trials have used by now."""
    facts = draft.facts
    if event.slot_s <= facts.slot_s and event.usd <= facts.usd:
        return "no more is used than known"
    draft.note(slot_s=max(event.slot_s, facts.slot_s), usd=max(event.usd, facts.usd))
    draft.stirred = True
    return None


def duration_exceeded(draft: StudyDraft, event: e.StudyDurationExceeded) -> str | None:
    """End the study because it ran for as long as it may; its trials save and report first."""
    deadline_at = draft.facts.deadline_at
    if deadline_at is None or draft.now < deadline_at:
        return "the study may still run"
    said = f"{draft.policy.budget.duration_s:g} s" if draft.policy.budget.duration_s else ""
    draft.end(StudyState.SUCCEEDED, SearchCode.DURATION_REACHED, said)
    return None
