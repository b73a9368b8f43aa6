"""How a trial goes on beyond its rung, and how the budget limits what may start."""

from __future__ import annotations

import math

from phalanx.core.search.draft import US, StudyDraft
from phalanx.core.search.index import micro
from phalanx.core.search.model import (
    ContinueTo,
    ResizeTrial,
    SearchCode,
    SearchReason,
    Study,
    Trial,
    TrialStatus,
)

DEFAULT_HOLD_S = 2.0
"""Seconds for which a trial keeps its slots at a rung until the cost of a resume is known."""
SHORTEST_HOLD_S, LONGEST_HOLD_S = 0.2, 5.0
_S = TrialStatus


def hold_us(draft: StudyDraft | Study) -> int:
    """Microseconds for which a trial keeps its slots at a rung."""
    rungs = draft.policy.rungs
    if rungs is not None and rungs.hold_s is not None:
        return round(rungs.hold_s * US)
    cost_s = draft.facts.resume_cost_s
    cost_s = DEFAULT_HOLD_S if cost_s is None else cost_s
    return round(min(max(cost_s, SHORTEST_HOLD_S), LONGEST_HOLD_S) * US)


def needs_resize(draft: StudyDraft, trial: Trial) -> bool:
    """Whether a trial gets other resources for the way to its next rung."""
    policy = draft.policy
    if not policy.resources:
        return False
    following = policy.levels[trial.rung + 1]
    return policy.resources_at(trial.until) != policy.resources_at(following)


def complete(draft: StudyDraft, trial: Trial) -> None:
    """End a trial that has reached the last rung."""
    said = f"reached unit {trial.until}"
    draft.stop_trial(trial, _S.COMPLETED, SearchReason(SearchCode.REACHED_END, said))


def raise_target(draft: StudyDraft, trial: Trial, why: str) -> Trial:
    """Let a trial that holds its slots or is paused train to the next rung.

    A script that cannot stop at an exact unit may have passed that rung already; then its newest report
    is its result there.
    """
    following = draft.policy.levels[trial.rung + 1]
    reason = SearchReason(SearchCode.PROMOTED, f"to unit {following}: {why}")
    resized = needs_resize(draft, trial)
    trial = draft.change(
        trial, rung=trial.rung + 1, until=following, hold_until=None, reason=reason
    )
    if trial.last is not None and trial.last.unit >= following:
        return draft.change(trial, results=(*trial.results, trial.last))
    amount = estimate_s(draft, trial, following)
    if trial.status is _S.PAUSED:
        resources = draft.policy.resources_at(following)
        if resized and resources is not None:
            own = trial.pinned or trial.last.checkpoint if trial.last else trial.pinned
            draft.command(ResizeTrial(trial.number, resources, own))
            trial = draft.change(trial, resized=trial.resized + 1)
        trial = draft.resume(trial, reason)
    else:
        draft.command(ContinueTo(trial.number, following))
        trial = draft.change(trial, status=_S.RUNNING)
    return draft.change(trial, reserved_s=trial.reserved_s + amount)


def may_go_on(draft: StudyDraft, trial: Trial) -> bool:
    """Whether the budget has room for a trial's way to its next rung."""
    return affordable(draft, estimate_s(draft, trial, draft.policy.levels[trial.rung + 1]))


def stop_for_budget(draft: StudyDraft, trial: Trial) -> None:
    """End a trial that the budget has no room for; a paused one waits for the end of the study."""
    if trial.status is _S.PAUSED:
        return
    spent = SearchCode.SLOT_HOURS_SPENT
    if draft.policy.budget.slot_hours is None:
        spent = SearchCode.MONEY_SPENT
    said = "no room for the way to the next rung"
    draft.stop_trial(trial, _S.STOPPED, SearchReason(spent, said))


def estimate_s(draft: StudyDraft, trial: Trial, until: int | None) -> float:
    """Slot-seconds that a trial will need up to a unit, from what trials have used so far."""
    index = draft.index
    if until is not None and index.units:
        done = 0 if trial.last is None else trial.last.unit
        return max(until - done, 0) * index.used_us / index.units / US
    return index.used_us / index.settled / US if index.settled else 0.0


def affordable(draft: StudyDraft, amount_s: float) -> bool:
    """Whether the budget has room for so many slot-seconds beside what is used and reserved."""
    index, budget = draft.index, draft.policy.budget
    wanted = index.used_us + index.reserved_us + micro(amount_s)
    if budget.slot_hours is not None and wanted > micro(budget.slot_hours * 3600):
        return False
    if budget.usd is None or not index.used_us:
        return True
    return wanted * (index.usd_micro / index.used_us) <= micro(budget.usd)


def is_finite(pair: tuple[float, int]) -> bool:
    """Whether a rung's entry has a result that is a number."""
    return math.isfinite(pair[0])
