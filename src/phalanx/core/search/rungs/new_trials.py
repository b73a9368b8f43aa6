"""How a trial begins: its bracket, its first rung, and its params."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.index import params_key
from phalanx.core.search.model import (
    Origin,
    RungPolicy,
    SearchCode,
    SearchReason,
    Trial,
    TrialStatus,
)
from phalanx.core.search.space import Params, cell_of

_CYCLE = 1000


def new_trial(draft: StudyDraft, origin: Origin | None = None) -> Trial:
    """The next trial of a study, without params."""
    number = len(draft.trials)
    policy = draft.policy
    bracket = 0 if policy.rungs is None else bracket_of(policy.rungs, number)
    return Trial(
        number,
        {},
        origin or Origin(policy.method),
        bracket=bracket,
        first_rung=bracket,
        rung=bracket,
        until=policy.levels[bracket] if policy.levels else None,
    )


def take_params(draft: StudyDraft, trial: Trial, params: Params, **changes: Any) -> Trial:
    """Give a trial its params; that of an outside evaluator runs at once, others wait for a place."""
    trial = draft.change(
        trial,
        params=dict(params),
        status=TrialStatus.SUGGESTED,
        reason=SearchReason(SearchCode.SUGGESTED),
        **changes,
    )
    if trial.evaluator is not None:
        trial = draft.lease(
            trial, status=TrialStatus.RUNNING, reason=runs_at(trial.evaluator), queued_at=draft.now
        )
    return trial


def runs_at(evaluator: str) -> SearchReason:
    """The reason of a trial that an outside evaluator computes."""
    return SearchReason(SearchCode.RUNS, f"at evaluator {evaluator}" if evaluator else "outside")


def known_params(draft: StudyDraft, params: Params) -> int | None:
    """The number of a trial with the same params; None if there is none."""
    key = params_key(params)
    for found, number in draft.index.seen.from_item((key, -1)):
        if found != key:
            return None
        if cell_of(draft.trials[number].params) == cell_of(params):
            return number
    return None


def bracket_of(rungs: RungPolicy, number: int) -> int:
    """The bracket of a trial: a function of its number alone."""
    if rungs.num_brackets == 1:
        return 0
    cycle = _brackets(rungs.eta, len(rungs.levels), rungs.num_brackets)
    return cycle[number % len(cycle)]


@lru_cache(maxsize=64)
def _brackets(eta: int, num_rungs: int, num_brackets: int) -> tuple[int, ...]:
    """The brackets of 1,000 trials in a row, each as often as its weight says, evenly spread.

    Weights are those of Hyperband (Li et al. 2018, arXiv 1603.06560): a bracket that begins b rungs later
    has about eta**b times fewer trials, so that all brackets cost about the same.
    """
    top = num_rungs - 1
    weights = [num_rungs / (top - b + 1) * eta ** (top - b) for b in range(num_brackets)]
    share = [weight / sum(weights) for weight in weights]
    given = [0] * num_brackets
    order = []
    for number in range(_CYCLE):
        # The bracket that is furthest behind its share; the first one of equals.
        behind = [share[b] * (number + 1) - given[b] for b in range(num_brackets)]
        bracket = behind.index(max(behind))
        given[bracket] += 1
        order.append(bracket)
    return tuple(order)
