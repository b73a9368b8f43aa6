"""What a sampler is told about a study."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from phalanx.core.search.index import restore
from phalanx.core.search.model import (
    Objective,
    Origin,
    PopulationPolicy,
    RungPolicy,
    Study,
    StudyFacts,
    StudyPolicy,
    Trial,
    TrialResult,
    TrialStatus,
)
from phalanx.core.search.observations import (
    MAX_OBSERVATIONS,
    changes,
    learning_rung,
    observations,
    sample_request,
)
from phalanx.core.search.sampling import ForkBasis
from phalanx.core.search.space import FloatParameter, Space

pytestmark = pytest.mark.unit
S = TrialStatus
SPACE = Space({"x": FloatParameter(0.0, 1.0)})


def trial(number: int, status: TrialStatus, *values: float) -> Trial:
    results = tuple(TrialResult(3**at, value, None, value) for at, value in enumerate(values))
    return Trial(
        number,
        {"x": number / 100_000},
        Origin("random"),
        status,
        results=results,
        rung=max(len(values) - 1, 0),
        last=results[-1] if results else None,
        queued_at=0,
    )


def study(trials: list[Trial], **settings: object) -> Study:
    return restore(1, StudyPolicy(SPACE, **settings), StudyFacts(0), trials)  # type: ignore[arg-type]


def test_changes_of_a_population_begin_at_the_parents_checkpoint() -> None:
    population = PopulationPolicy(4, 2, 8, explore="pb2")
    parent = replace(
        trial(0, S.RUNNING),
        results=(TrialResult(2, 5.0, "c2", 5.0), TrialResult(4, 3.0, "c4", 3.0)),
        rung=2,
        until=6,
    )
    fork = replace(
        trial(1, S.RUNNING),
        origin=Origin("pb2", parent=0, step=4),
        results=(TrialResult(6, 7.0, "c6", 7.0),),
        first_rung=2,
        rung=3,
        until=8,
    )
    lost = replace(trial(2, S.DIVERGED), rung=1, until=4)
    asked = replace(trial(3, S.ASKED), params={}, origin=Origin("fork", parent=1, step=6))
    there = study([parent, fork, lost, asked], population=population, method="pb2")
    found = [(one.number, one.value, one.unit) for one in changes(there)]
    assert found == [(0, -1.0, 4), (0, None, 6), (1, 2.0, 6), (1, None, 8), (2, math.inf, 4)]
    request = sample_request(there, 3)
    assert request.fork == ForkBasis(fork.params, 6) and request.duplicates == "allow"


def test_a_failed_or_diverged_trial_is_the_worst_with_a_margin() -> None:
    there = study(
        [
            trial(0, S.COMPLETED, 1.0),
            trial(1, S.COMPLETED, 3.0),
            trial(2, S.DIVERGED, 0.1),
            trial(3, S.FAILED),
            trial(4, S.REJECTED),
            trial(5, S.RUNNING, 0.5),
        ]
    )
    values = [one.value for one in observations(there)]
    assert values == [1.0, 3.0, 3.2, 3.2, 3.2, None]


def test_values_are_oriented_and_nothing_finite_is_told_without_a_result() -> None:
    there = study([trial(0, S.COMPLETED, 1.0)], objective=Objective(goal="maximize"))
    assert observations(there)[0].value == -1.0
    (only,) = observations(study([trial(0, S.FAILED)]))
    assert only.value == math.inf and not only.is_finite


def test_samplers_learn_from_the_highest_rung_with_enough_results() -> None:
    settings = {"rungs": RungPolicy(max=9)}
    low = [trial(number, S.PAUSED, 1.0 + number) for number in range(5)]
    high = [trial(number, S.PAUSED, 0.1, 0.2 + number) for number in range(5, 7)]
    there = study(low + high, **settings)
    assert learning_rung(there) == 0
    assert {one.unit for one in observations(there)} == {1}
    third = trial(7, S.PAUSED, 0.1, 0.3)
    there = study([*low, *high, third], **settings)
    assert learning_rung(there) == 1
    told = observations(there)
    assert [one.value for one in told] == [None] * 5 + [5.2, 6.2, 0.3]
    assert {one.unit for one in told} == {3}


def test_a_long_study_is_told_in_few_trials() -> None:
    trials = [trial(number, S.COMPLETED, abs(number - 1234.5)) for number in range(5000)]
    trials[10] = trial(10, S.RUNNING)
    numbers = [one.number for one in observations(study(trials))]
    assert numbers == sorted(set(numbers)) and len(numbers) <= MAX_OBSERVATIONS
    assert {10, 1234, 1235, 4999, 4700} <= set(numbers)


def test_a_request_tells_only_of_trials_before_it() -> None:
    there = study([trial(0, S.COMPLETED, 1.0), trial(1, S.RUNNING), trial(2, S.RUNNING)])
    request = sample_request(there, 1)
    assert [one.number for one in request.observations] == [0] and request.trial == 1
