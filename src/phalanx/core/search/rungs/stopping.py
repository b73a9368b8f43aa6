"""Rules that stop trials at a rung without a pause: ASHA by stopping, the median and percentile rules."""

from __future__ import annotations

from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.model import (
    RungPolicy,
    SearchCode,
    SearchReason,
    Trial,
    TrialStatus,
)
from phalanx.core.search.rungs.advance import (
    complete,
    hold_us,
    may_go_on,
    raise_target,
    stop_for_budget,
)

_S = TrialStatus


def arrive(draft: StudyDraft, trial: Trial) -> None:
    """Judge a trial at its rung, and those that wait there for more results."""
    rungs = draft.policy.rungs
    assert rungs is not None
    if trial.rung == len(draft.policy.levels) - 1:
        complete(draft, trial)
        return
    if trial.status is _S.PAUSED or trial.ending is not None:
        return
    if rungs.rule in ("median", "percentile"):
        _judge_by_share(draft, rungs, trial)
        return
    reached = SearchReason(SearchCode.REACHED_RUNG, f"unit {trial.until}")
    hold_until = draft.now + hold_us(draft)
    trial = draft.change(trial, status=_S.HELD, reason=reached, hold_until=hold_until)
    rung = draft.index.rungs[trial.bracket, trial.rung]
    if len(rung.results) < rungs.eta and hold_until > draft.now:
        return
    for pair in list(rung.candidates):
        one = draft.trials[pair[1]]
        if one.status is not _S.HELD or one.ending is not None:
            continue
        limit = max(1, len(rung.results) // rungs.eta)
        if rung.results.rank(pair) < limit:
            go_on(draft, one, "among the best of its rung")
        else:
            said = f"at unit {one.until}, not among the best {limit} of {len(rung.results)}"
            draft.stop_trial(one, _S.STOPPED, SearchReason(SearchCode.BEHIND_OTHERS, said))


def go_on(draft: StudyDraft, trial: Trial, why: str) -> None:
    """Let a trial train to the next rung."""
    if not may_go_on(draft, trial):
        stop_for_budget(draft, trial)
        return
    trial = raise_target(draft, trial, why)
    if trial.at_rung:
        arrive(draft, trial)


def _judge_by_share(draft: StudyDraft, rungs: RungPolicy, trial: Trial) -> None:
    """Stop a trial that is worse than the share of the others that `percentile` says."""
    results = draft.index.rungs[trial.bracket, trial.rung].results
    pair = (draft.policy.objective.oriented(trial.results[-1].score), trial.number)
    share = 50.0 if rungs.rule == "median" else rungs.percentile
    limit = int((len(results) - 1) * share / 100)
    if len(results) <= rungs.min_results or results.rank(pair) <= limit:
        go_on(draft, trial, f"not worse than {share:g} % of its rung")
        return
    said = f"at unit {trial.until}, number {results.rank(pair) + 1} of {len(results)}"
    draft.stop_trial(trial, _S.STOPPED, SearchReason(SearchCode.BEHIND_OTHERS, said))


def go_on_paused(draft: StudyDraft, trial: Trial) -> None:
    """Let a trial go on that the study's pause kept from being judged; one at the last rung is complete."""
    if trial.rung == len(draft.policy.levels) - 1:
        complete(draft, trial)
        return
    go_on(draft, trial, "the study goes on")
