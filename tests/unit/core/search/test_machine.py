"""Decisions of the study machine that a random order of events seldom reaches."""

from __future__ import annotations

import pytest

from phalanx.core.search import events as e
from phalanx.core.search.draw import grid_params
from phalanx.core.search.machine import create, decide
from phalanx.core.search.model import (
    Ask,
    Origin,
    PopulationPolicy,
    RungPolicy,
    SearchCode,
    Study,
    StudyPolicy,
    StudyState,
    TrialStatus,
)
from phalanx.core.search.space import ChoiceParameter, FloatParameter, Space

pytestmark = pytest.mark.unit
CELLS = Space({"x": ChoiceParameter((1, 2, 3))})
FEWER = Space({"x": ChoiceParameter((1, 2, 3, 4))}, constraints=("x < 4",))


def after(study: Study, event: e.StudyEvent) -> Study:
    return decide(study, event, 0).study


def told(study: Study, event: e.StudyEvent) -> Study:
    decision = decide(study, event, 0)
    assert decision.ignored is None
    study = decision.study
    for command in decision.commands:
        if isinstance(command, Ask):
            cells = {tuple(one.params.items()) for one in study.trials}
            params = grid_params(study.policy.space, 1, command.trial)
            assert params is not None and tuple(params.items()) not in cells, "asked in vain"
            study = told(study, e.Suggested(command.trial, params, Origin("grid")))
    return study


@pytest.mark.parametrize("space", [CELLS, FEWER], ids=["all", "constrained"])
@pytest.mark.parametrize("jobs", [True, False], ids=["jobs", "outside"])
def test_a_rejected_trial_of_a_full_grid_has_no_successor_without_params(
    space: Space, jobs: bool
) -> None:
    policy = StudyPolicy(space, method="grid", max_trials=3, parallel=3, jobs=jobs)
    study = create(e.StudySubmitted(1, policy), 0).study
    for number in range(3):
        if not jobs:
            study = told(study, e.TrialAsked("some"))
        elif study.trials[number].status is TrialStatus.ASKED:
            params = grid_params(space, 1, number)
            assert params is not None
            study = told(study, e.Suggested(number, params, Origin("grid")))
    for number in range(3):
        assert study.state is StudyState.RUNNING
        outcome = e.TrialOutcome.SUCCEEDED if number else e.TrialOutcome.REJECTED
        if jobs:
            study = told(study, e.TrialReported(number, 1, 0.5)) if number else study
            study = told(study, e.TrialEnded(number, outcome))
        else:
            study = told(study, e.TrialTold(number, 0.5, outcome))
    assert len(study.trials) == 3 and all(one.params for one in study.trials)
    assert study.is_over
    assert study.facts.reason.code is SearchCode.EXHAUSTED
    assert study.facts.reason.message == "all combinations were tried"


def test_a_trial_outside_is_compared_at_its_rung_also_while_the_study_is_paused() -> None:
    space = Space({"x": FloatParameter(0.0, 1.0)})
    rungs = RungPolicy(type="stop", min=1, max=4, eta=2, hold_s=0.0)
    policy = StudyPolicy(space, method="random", max_trials=3, rungs=rungs, jobs=False)
    study = create(e.StudySubmitted(1, policy), 0).study
    for number in range(2):
        study = after(study, e.TrialAsked("some"))
        origin = Origin("random")
        study = after(study, e.Suggested(number, {"x": 0.1 + number / 2}, origin))
    study = told(study, e.StudyPaused())
    study = told(study, e.TrialReported(0, 1, 0.1))
    study = told(study, e.TrialReported(1, 1, 0.9))
    assert study.trials[0].until == 2, "it trains on to the next rung"
    assert study.trials[1].reason.code is SearchCode.BEHIND_OTHERS


def test_members_of_a_population_with_few_places_take_turns() -> None:
    """A member that has paused for the others is not resumed before they have reached its interval."""
    space = Space({"x": FloatParameter(0.0, 1.0)})
    population = PopulationPolicy(3, interval=1, max=2, quantile=0.0)
    policy = StudyPolicy(space, method="pbt", max_trials=3, parallel=1, population=population)
    study = create(e.StudySubmitted(1, policy), 0).study
    order = []
    for _ in range(6):
        while study.index.asked:
            number = study.index.asked.first() or 0
            event = e.Suggested(number, {"x": 0.1 + number / 4}, Origin("random"))
            study = after(study, event)
        (number,) = study.index.placed
        trial = study.trials[number]
        order.append((number, trial.until))
        if trial.job is None:
            study = after(study, e.TrialSubmitted(number, number + 1))
        study = after(study, e.TrialReported(number, trial.until or 0, 0.5, f"c{number}"))
        if study.trials[number].ending is TrialStatus.PAUSED:
            study = after(study, e.TrialPaused(number, f"c{number}"))
        elif study.trials[number].ending is not None:
            study = after(study, e.TrialEnded(number, e.TrialOutcome.STOPPED))
    assert [until for _, until in order] == [1, 1, 1, 2, 2, 2]
    assert study.is_over


def test_a_member_that_reaches_the_end_while_it_is_paused_is_complete() -> None:
    space = Space({"x": FloatParameter(0.0, 1.0)})
    population = PopulationPolicy(2, interval=1, max=2, quantile=0.0)
    policy = StudyPolicy(space, method="pbt", max_trials=2, parallel=2, population=population)
    study = create(e.StudySubmitted(1, policy), 0).study
    for number in range(2):
        study = after(study, e.Suggested(number, {"x": 0.1 + number / 2}, Origin("random")))
        study = after(study, e.TrialStarted(number))
    for number in range(2):
        study = after(study, e.TrialReported(number, 1, 0.5, f"c:{number}:1"))
    study = told(study, e.StudyPaused())
    study = told(study, e.TrialReported(0, 2, 0.4, "c:0:2"))
    study = told(study, e.StudyResumed())
    study = told(study, e.TrialPaused(0, "c:0:2", 1.0, 0.0))
    assert study.trials[0].status is TrialStatus.COMPLETED


def running(number_of_trials: int = 2, **changes: object) -> Study:
    """A study of six trials, two at the same time, of which some run and one more has its params."""
    space = Space({"x": FloatParameter(0.0, 1.0)})
    policy = StudyPolicy(space, method="random", max_trials=6, parallel=2, **changes)
    study = create(e.StudySubmitted(1, policy), 0).study
    for number in range(number_of_trials + 1):
        study = after(study, e.Suggested(number, {"x": 0.1 * number}, Origin("random")))
    for number in range(number_of_trials):
        study = after(after(study, e.TrialSubmitted(number, number + 10)), e.TrialStarted(number))
    return study


def test_a_stop_that_lets_trials_finish_begins_no_more_and_ends_none() -> None:
    study = running()
    decision = decide(study, e.StudyStopped("by a user", finish=True), 0)
    assert decision.commands == ()
    study = decision.study
    assert study.state is StudyState.RUNNING
    assert study.trials[2].status is TrialStatus.STOPPED  # it had only its params
    for number in range(2):
        study = after(study, e.TrialReported(number, 1, 0.5))
        study = after(study, e.TrialEnded(number, e.TrialOutcome.SUCCEEDED))
    assert [study.trials[at].status for at in range(2)] == [TrialStatus.COMPLETED] * 2
    assert (study.state, study.facts.reason.code) == (
        StudyState.SUCCEEDED,
        SearchCode.STOP_REQUESTED,
    )


def test_extending_withdraws_a_stop_that_lets_trials_finish() -> None:
    study = after(running(), e.StudyStopped("by a user", finish=True))
    decision = decide(study, e.StudyExtended(max_trials=8), 0)
    assert any(isinstance(command, Ask) for command in decision.commands)
    assert decision.study.facts.verdict is None


def test_a_paused_study_cannot_let_its_trials_finish() -> None:
    study = after(running(), e.StudyPaused())
    assert decide(study, e.StudyStopped("", finish=True), 0).ignored == "the study is paused"
