"""Promotion from rung to rung: asynchronous successive halving (ASHA), Hyperband and PASHA.

A trial is promoted when it is among the best 1/eta of the results known at its rung (Li et al. 2020,
arXiv 1810.05934). Ties go to the lower number. A better result that comes later takes nothing back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.model import (
    Rung,
    SearchCode,
    SearchReason,
    Trial,
    TrialStatus,
)
from phalanx.core.search.rungs.advance import (
    complete,
    hold_us,
    may_go_on,
    needs_resize,
    raise_target,
)

_S = TrialStatus


def arrive(draft: StudyDraft, trial: Trial) -> None:
    """Hold a trial at its rung, or end it at the last one."""
    if trial.rung == len(draft.policy.levels) - 1:
        complete(draft, trial)
        return
    if trial.status is not _S.PAUSED and trial.ending is None:
        reached = SearchReason(SearchCode.REACHED_RUNG, f"unit {trial.until}")
        hold_until = draft.now + hold_us(draft)
        draft.change(trial, status=_S.HELD, reason=reached, hold_until=hold_until)
        draft.arrived.append(trial.number)
    draft.stirred = True
    _raise_ceiling(draft, trial)


def promote(draft: StudyDraft) -> int:
    """Promote whatever can be, from the highest rung down; returns how many wait for a place."""
    wanting = 0
    eta = draft.policy.rungs.eta if draft.policy.rungs else 1
    # Only rungs where a trial could go on: in most decisions there is none.
    ready = [
        (-key[1], key[0], key)
        for key, rung in draft.index.rungs.items()
        if rung.candidates and len(rung.results) >= eta and key[1] < _ceiling(draft)
    ]
    for *_, key in sorted(ready):
        for number in list(promotable(draft.index.rungs[key], eta)):
            wanting += _promote_one(draft, draft.trials[number])
    return wanting


def promotable(rung: Rung, eta: int) -> Iterator[int]:
    """The trials that are among the best 1/eta of a rung and have not gone on, best first."""
    limit = len(rung.results) // eta
    for pair in rung.candidates:
        if rung.results.rank(pair) >= limit:
            return
        yield pair[1]


def _promote_one(draft: StudyDraft, trial: Trial) -> int:
    """Promote a trial if it holds its slots or a place is free; 1 if it has to wait for one."""
    if trial.ending is not None:
        return 0  # it is leaving its slots, and goes on from the pause
    if trial.status is _S.HELD and needs_resize(draft, trial):
        draft.pause_trial(trial)
        return 0
    if trial.status is _S.PAUSED and draft.free <= 0:
        return 1
    if not may_go_on(draft, trial):
        return 0
    go_on(draft, trial, "among the best of its rung")
    return 0


def go_on(draft: StudyDraft, trial: Trial, why: str) -> None:
    """Let a trial train to the next rung."""
    trial = raise_target(draft, trial, why)
    if trial.at_rung:
        arrive(draft, trial)


def leave(draft: StudyDraft, wanting: int) -> None:
    """Pause held trials: those that have no chance now, and as many as places are wanted."""
    held = draft.index.timers
    if not held:
        draft.arrived.clear()
        return
    short = wanting - draft.index.leaving
    for number in [number for _, number in held]:
        trial = draft.trials[number]
        if trial.status is not _S.HELD or trial.ending is not None:
            continue
        if short > 0 or (number in draft.arrived and not _may_be_promoted(draft, trial)):
            draft.pause_trial(trial)
            short -= 1
    draft.arrived.clear()


def _may_be_promoted(draft: StudyDraft, trial: Trial) -> bool:
    """Whether a trial could be promoted once all that train towards its rung have arrived."""
    rungs = draft.policy.rungs
    if rungs is None or hold_us(draft) <= 0 or trial.rung >= _ceiling(draft):
        return False
    rung = draft.index.rungs[trial.bracket, trial.rung]
    pair = (draft.policy.objective.oriented(trial.results[-1].score), trial.number)
    return rung.results.rank(pair) < (len(rung.results) + rung.coming) // rungs.eta


def lead_to_end(draft: StudyDraft) -> bool:
    """Promote the best of the highest rung though too few are there, so that one trial is complete.

    Called when nothing else can happen any more. Returns whether a trial goes on.
    """
    rungs = draft.policy.rungs
    if rungs is None or rungs.rule == "pasha" or draft.index.top:
        return False
    for key in sorted(draft.index.rungs, key=lambda one: (-one[1], one[0])):
        first = draft.index.rungs[key].candidates.first()
        if first is None or key[1] >= len(draft.policy.levels) - 1:
            continue
        trial = draft.trials[first[1]]
        if not may_go_on(draft, trial):
            return False
        go_on(draft, trial, "the best of the study is trained to the end")
        return True
    return False


def _ceiling(draft: StudyDraft) -> int:
    """The rung up to which trials may be promoted."""
    top = len(draft.policy.levels) - 1
    if draft.policy.rungs is None or draft.policy.rungs.rule != "pasha":
        return top
    return min(max(draft.facts.ceiling, 1), top)


def _raise_ceiling(draft: StudyDraft, trial: Trial) -> None:
    """PASHA: allow one more rung while the two highest rungs order their trials differently.

    Bohdal et al. 2023, arXiv 2207.06940, with soft ranking: values closer than a share of the lower rung's
    spread count as equal.
    """
    rungs = draft.policy.rungs
    if rungs is None or rungs.rule != "pasha" or trial.rung != _ceiling(draft):
        return
    top = draft.index.rungs[trial.bracket, trial.rung].results
    ranked = [number for score, number in top if math.isfinite(score)]
    before = {number: _score_at(draft, number, trial.rung - 1) for number in ranked}
    if len(ranked) < 2 or None in before.values():
        return
    scores = [before[number] or 0.0 for number in ranked]
    lower = draft.index.rungs[trial.bracket, trial.rung - 1].results
    spread = lower.at(len(lower) // 2)[0] - lower.at(0)[0]
    tolerance = rungs.tolerance * spread if math.isfinite(spread) else math.inf
    if any(abs(one - other) > tolerance for one, other in zip(scores, sorted(scores), strict=True)):
        draft.note(ceiling=_ceiling(draft) + 1)


def _score_at(draft: StudyDraft, number: int, rung: int) -> float | None:
    trial = draft.trials[number]
    offset = rung - trial.first_rung
    if not 0 <= offset < len(trial.results):
        return None
    return draft.policy.objective.oriented(trial.results[offset].score)
