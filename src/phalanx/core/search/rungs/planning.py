"""What a study does next, after every event: it goes on, starts, asks, or ends.

Order for free places: trials that were interrupted, promotions, forks, new trials.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.model import (
    FINAL_SAMPLER,
    Ask,
    FinishStudy,
    ForkTrial,
    Origin,
    SearchCode,
    SearchReason,
    StopTrial,
    StudyState,
    Trial,
    TrialStatus,
)
from phalanx.core.search.rungs import population, promotion, stopping
from phalanx.core.search.rungs.advance import affordable, estimate_s
from phalanx.core.search.rungs.new_trials import known_params, new_trial, take_params

_S = TrialStatus
_WAITING = SearchReason(SearchCode.WAITING_FOR_SLOTS)


def plan(draft: StudyDraft) -> None:
    """Add the commands that follow from the state that an event has led to."""
    if draft.facts.state is StudyState.RUNNING:
        _judge_budget(draft)
    if draft.facts.state is StudyState.RUNNING:
        _fill(draft)
    if draft.facts.state is StudyState.STOPPING and not draft.index.placed:
        facts = draft.facts
        _conclude(draft, facts.ending or StudyState.CANCELLED, facts.reason)


def _fill(draft: StudyDraft) -> None:
    _go_on_interrupted(draft)
    if not draft.facts.finals:
        _decide_at_rungs(draft)
    blocked = _start(draft)
    _ask(draft)
    # What was given with the study needs no sampler, and may start at once.
    blocked = _start(draft) or blocked
    _finish(draft, blocked=blocked)


def _judge_budget(draft: StudyDraft) -> None:
    """End the study once the budget is spent; its trials save and report first."""
    budget, index, facts = draft.policy.budget, draft.index, draft.facts
    slot_s, usd = max(index.used_us / 1e6, facts.slot_s), max(index.usd_micro / 1e6, facts.usd)
    if budget.slot_hours is not None and slot_s >= budget.slot_hours * 3600:
        said = f"{slot_s / 3600:.2f} of {budget.slot_hours:g} slot-hours"
        draft.end(StudyState.SUCCEEDED, SearchCode.SLOT_HOURS_SPENT, said)
    elif budget.usd is not None and usd >= budget.usd:
        draft.end(StudyState.SUCCEEDED, SearchCode.MONEY_SPENT, f"{usd:.2f} of {budget.usd:.2f}")


def _go_on_interrupted(draft: StudyDraft) -> None:
    """Put trials that were paused before they reached their rung into the queue again."""
    for number in list(draft.index.interrupted):
        trial = draft.trials[number]
        if draft.free <= 0:
            return
        amount = estimate_s(draft, trial, trial.until)
        if affordable(draft, amount):
            draft.change(draft.resume(trial, _WAITING), reserved_s=amount)


def _decide_at_rungs(draft: StudyDraft) -> None:
    policy = draft.policy
    if policy.rungs is not None and policy.rungs.pauses:
        promotion.leave(draft, promotion.promote(draft))
    elif policy.levels and not (policy.population is not None and _members_wait(draft)):
        _go_on_paused(draft)


def _members_wait(draft: StudyDraft) -> bool:
    """Whether members of a population have not begun: the others wait to be compared with them."""
    index = draft.index
    return bool(index.asked or index.suggested) or _room_for_trials(draft) > 0


def _go_on_paused(draft: StudyDraft) -> None:
    """Let trials that were paused at a rung go on, those at the lowest rung first."""
    step = stopping.go_on_paused if draft.policy.population is None else population.go_on
    for key in sorted(draft.index.rungs, key=lambda one: (one[1], one[0])):
        for _, number in list(draft.index.rungs[key].candidates):
            trial = draft.trials[number]
            if trial.status is _S.PAUSED and draft.free > 0:
                step(draft, trial)


def _start(draft: StudyDraft) -> bool:
    """Submit trials that have params while places are free; True if the budget has no room for one."""
    if not draft.index.suggested or draft.free <= 0 or not draft.policy.jobs:
        return False
    waiting = list(draft.index.suggested)
    if draft.policy.population is not None:
        waiting.sort(key=lambda number: (draft.trials[number].origin.parent is None, number))
    for number in waiting:
        if draft.free <= 0:
            return False
        trial = draft.trials[number]
        amount = estimate_s(draft, trial, trial.until)
        if not affordable(draft, amount):
            return True
        _submit(draft, trial, amount)
    return False


def _submit(draft: StudyDraft, trial: Trial, amount: float) -> None:
    parent = trial.origin.parent
    if trial.fork_of is None or parent is None:
        draft.submit(trial, reserved_s=amount)
        return
    draft.command(ForkTrial(trial.number, parent, trial.fork_of, trial.params))
    draft.change(trial, status=_S.WAITING, reason=_WAITING, queued_at=draft.now, reserved_s=amount)


def _room_for_trials(draft: StudyDraft) -> int:
    """Number of trials that may still be created; a large number without a limit."""
    policy, facts = draft.policy, draft.facts
    if facts.exhausted or facts.finals:
        return 0
    limit = policy.max_trials if policy.population is None else policy.population.size
    return 1_000_000 if limit is None else limit - draft.index.counted


def _wanted(draft: StudyDraft) -> int:
    """Number of trials that have a place now or are wanted ahead, and are not asked for yet."""
    index = draft.index
    ready = len(index.asked) + len(index.suggested)
    return max(draft.free, 0) + draft.policy.ahead - ready


def _ask(draft: StudyDraft) -> None:
    """Ask for the params of as many trials as have a place now, and some ahead."""
    if not draft.index.asked and _room_for_trials(draft) > 0 and _is_used_up(draft):
        draft.note(exhausted=True)
    if not draft.policy.jobs:
        return
    while _wanted(draft) > 0 and _room_for_trials(draft) > 0 and not _is_used_up(draft):
        trial = draft.add(new_trial(draft))
        if trial.number >= len(draft.policy.start_with):
            draft.command(Ask(trial.number))
            continue
        params = draft.policy.start_with[trial.number]
        twin = known_params(draft, params) if draft.policy.duplicates == "never" else None
        if twin is None:
            take_params(draft, trial, params, origin=Origin("user", reason="given with the study"))
        else:
            reason = SearchReason(SearchCode.DUPLICATE, f"the same params as trial {twin}")
            draft.finish_trial(trial, _S.STOPPED, reason)


def _is_used_up(draft: StudyDraft) -> bool:
    """Whether each combination of a finite space has a trial or is asked for: another ask is in vain."""
    index, cells = draft.index, draft.policy.num_cells
    if cells is None or draft.policy.duplicates != "never":
        return False
    if len(index.seen) + len(index.asked) < cells:
        return False
    # A user may have added params that were there already.
    return len({key for key, _ in index.seen}) + len(index.asked) >= cells


def _finish(draft: StudyDraft, *, blocked: bool) -> None:
    """End the study when nothing can happen any more."""
    index = draft.index
    if index.placed or index.asked or (index.suggested and not blocked):
        return
    if blocked or index.interrupted:
        # Nothing runs, and the budget has no room for what waits.
        spent = SearchCode.SLOT_HOURS_SPENT
        if draft.policy.budget.slot_hours is None:
            spent = SearchCode.MONEY_SPENT
        draft.end(StudyState.SUCCEEDED, spent, "no room for another trial")
        return
    if _room_for_trials(draft) > 0:
        return
    if draft.facts.finals:
        verdict = draft.facts.verdict or SearchReason(SearchCode.ALL_TRIALS_ENDED)
        _conclude(draft, StudyState.SUCCEEDED, verdict)
    elif not promotion.lead_to_end(draft):
        _conclude(draft, StudyState.SUCCEEDED, _why_no_more(draft))


def _why_no_more(draft: StudyDraft) -> SearchReason:
    """Why a study that has trained all its trials asks for no more; the sampler may have said why."""
    if draft.facts.verdict is not None:
        return draft.facts.verdict
    if not draft.facts.exhausted:
        return SearchReason(SearchCode.ALL_TRIALS_ENDED)
    newest = (draft.trials[number].reason for number in reversed(range(len(draft.trials))))
    said = next((one.message for one in newest if one.code is SearchCode.EXHAUSTED), "")
    said = said or "all combinations were tried"
    return SearchReason(SearchCode.EXHAUSTED, said)


_SPENT = (SearchCode.SLOT_HOURS_SPENT, SearchCode.MONEY_SPENT, SearchCode.DURATION_REACHED)


def _conclude(draft: StudyDraft, state: StudyState, reason: SearchReason) -> None:
    """Retrain the best if that is wanted, else end the study; nothing runs any more."""
    final, best = draft.policy.final, draft.best
    wanted = final is not None and not draft.facts.finals and reason.code not in _SPENT
    if state is StudyState.SUCCEEDED and best is None and reason.code not in _SPENT:
        state, reason = StudyState.FAILED, SearchReason(SearchCode.NO_RESULT, str(reason))
    if wanted and final is not None and best is not None and state is StudyState.SUCCEEDED:
        _retrain(draft, best, final.seeds, reason)
        return
    _stop_paused(draft)
    draft.note(state=state, reason=reason, ending=None, ended_at=draft.now)
    draft.command(FinishStudy(state))


def _stop_paused(draft: StudyDraft) -> None:
    """End the trials that were not promoted: the search is over."""
    ended = SearchReason(SearchCode.NOT_PROMOTED, "the search has ended")
    for trial in list(draft.trials):
        if not trial.is_over:
            if trial.status is _S.PAUSED:
                draft.command(StopTrial(trial.number, ended))
            draft.finish_trial(trial, _S.STOPPED, ended)


def _retrain(draft: StudyDraft, best: Trial, seeds: int, verdict: SearchReason) -> None:
    """Begin the last trials: the best params, trained to the end with several seeds."""
    _stop_paused(draft)
    said = f"the params of trial {best.number}, {seeds} times"
    draft.note(
        state=StudyState.RUNNING,
        reason=SearchReason(SearchCode.RETRAINING, said),
        ending=None,
        finals=True,
        verdict=verdict,
    )
    levels = draft.policy.levels
    top = max(len(levels) - 1, 0)
    for seed in range(seeds):
        origin = Origin(FINAL_SAMPLER, sub=seed, reason=f"the params of trial {best.number}")
        until = levels[-1] if levels else None
        trial = new_trial(draft, origin)
        trial = draft.add(replace(trial, bracket=0, first_rung=top, rung=top, until=until))
        take_params(draft, trial, best.params)
    _start(draft)
    if not draft.index.placed:
        # The budget has no room for a single one.
        _conclude(draft, StudyState.SUCCEEDED, verdict)
