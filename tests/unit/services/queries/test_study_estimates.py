"""Estimates of when a study ends."""

from __future__ import annotations

import pytest

from phalanx.core.search import events as e
from phalanx.core.search.machine import create, decide
from phalanx.core.search.model import Origin, Study, StudyPolicy
from phalanx.core.search.space import FloatParameter, Space
from phalanx.services.queries.studies import expected_end

pytestmark = pytest.mark.unit
US = 1_000_000


def with_running(parallel: int, max_trials: int) -> Study:
    """A study in which as many trials run as may."""
    space = Space({"x": FloatParameter(0.0, 1.0)})
    policy = StudyPolicy(space, method="random", max_trials=max_trials, parallel=parallel)
    study = create(e.StudySubmitted(1, policy), 0).study
    for number in range(parallel):
        for event in (
            e.Suggested(number, {"x": number / parallel}, Origin("random")),
            e.TrialSubmitted(number, number + 10),
            e.TrialStarted(number),
        ):
            study = decide(study, event, 0).study
    return study


def ended(study: Study, number: int) -> Study:
    study = decide(study, e.TrialReported(number, 1, 0.5), 8 * US).study
    return decide(study, e.TrialEnded(number, e.TrialOutcome.SUCCEEDED), 8 * US).study


def test_the_first_estimate_counts_what_is_under_way() -> None:
    study = ended(with_running(parallel=4, max_trials=8), 0)
    end = expected_end(study, 0, 8 * US)
    # Eight trials of 8 s, four at the same time, take 16 s; one of eight alone would say 64 s.
    assert end is not None and 16 * US <= end <= 26 * US


def test_a_study_that_begins_no_more_ends_when_its_trials_have_ended() -> None:
    study = decide(with_running(parallel=4, max_trials=800), e.StudyStopped(finish=True), 0).study
    end = expected_end(ended(study, 0), 0, 8 * US)
    assert end is not None and end <= 20 * US
