"""What happens when a trial reaches its rung, or has held its slots there for as long as it may."""

from __future__ import annotations

from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.model import StudyState, Trial
from phalanx.core.search.rungs import population, promotion, stopping
from phalanx.core.search.rungs.advance import complete


def arrive(draft: StudyDraft, trial: Trial) -> None:
    """Decide about a trial that has a result at its rung."""
    if trial.ending is not None or trial.is_final:
        if trial.ending is None:
            complete(draft, trial)
        return
    if draft.facts.state is not StudyState.RUNNING and trial.evaluator is None:
        # Decided when the study goes on: the trial is a candidate of its rung. One outside cannot pause,
        # so it is decided now: else it would go on without ever being compared.
        if trial.rung == len(draft.policy.levels) - 1:
            complete(draft, trial)
        return
    if draft.policy.population is not None:
        population.arrive(draft, trial)
    elif draft.policy.rungs is not None and draft.policy.rungs.pauses:
        promotion.arrive(draft, trial)
    else:
        stopping.arrive(draft, trial)


def hold_over(draft: StudyDraft, trial: Trial) -> None:
    """Pause a trial that was not promoted in time; one that waited to be compared goes on."""
    if draft.policy.rungs is not None and not draft.policy.rungs.pauses:
        stopping.go_on(draft, trial, "too few results to compare it with")
    else:
        draft.pause_trial(trial)
