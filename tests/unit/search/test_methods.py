"""Methods by name: what `auto` chooses, what submission refuses, redraws, plugins, other studies."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from phalanx.core.search.sampling import Observation, SampleRequest, Suggestion
from phalanx.core.search.space import ChoiceParameter, FloatParameter, IntParameter, Space
from phalanx.errors import NotSupported
from phalanx.search import methods
from phalanx.search.gaussian_process import GaussianProcess
from phalanx.search.history import history, normal_scores, thinned
from phalanx.testing.search_methods import CONDITIONAL, PLAIN, trials

pytestmark = pytest.mark.unit
LINE = Space({"x": FloatParameter(0, 1), "y": FloatParameter(0, 1)})


@pytest.mark.parametrize(
    ("space", "count", "expected"),
    [
        (PLAIN, 9, "random"),
        (PLAIN, 10, "bayesian"),
        (PLAIN, 301, "tpe"),
        (CONDITIONAL, 10, "tpe"),
        (Space({f"x{i}": FloatParameter(0, 1) for i in range(13)}), 10, "tpe"),
    ],
)
def test_what_auto_stands_for(monkeypatch, space, count, expected):
    monkeypatch.setattr(methods, "_has", lambda module: True)
    request = SampleRequest(space, "auto", observations=trials(space, count))
    assert methods.chosen_method(request) == expected


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(methods, "_has", lambda module: False)
    (problem,) = methods.check("tpe", {}, LINE)
    assert "needs optuna on the control plane: pip install 'phalanx[search]'" in problem.message
    with pytest.raises(NotSupported, match="needs numpy"):
        methods.suggest(SampleRequest(LINE, "bayesian"))
    assert methods.chosen_method(SampleRequest(LINE, "auto", observations=trials(LINE, 40))) == (
        "random"
    )


@pytest.mark.parametrize(
    ("method", "options", "space", "words"),
    [
        ("bayes", {}, LINE, "unknown method `bayes`"),
        ("grid", {}, LINE, "space.x: a grid needs `step` or `values`"),
        ("grid", {}, Space({"x": IntParameter(1, 60)}), "60 combinations, but `trials.max` is 50"),
        (
            "grid",
            {},
            Space({"x": IntParameter(1, 10**6)}),
            "1000000 combinations; a grid has at most 100000",
        ),
        ("random", {"kappa": 1.0}, LINE, "random has no such option; options: none"),
        ("bayesian", {"kappa": -1.0}, LINE, "must be a number from 0"),
        ("bayesian", {"acquisition": "pi"}, LINE, "must be `ucb` or `ei`"),
        ("bayesian", {"init_points": 2.5}, LINE, "must be an integer"),
    ],
)
def test_problems_at_submission(method, options, space, words):
    assert words in "\n".join(map(str, methods.check(method, options, space, 50)))


def test_a_study_of_negated_values_gets_the_same_suggestions():
    # Values are oriented before they come here, so metric and goal negated together are the same
    # request; what is left to show is that scale and sign of values do not matter to a model.
    known = trials(PLAIN, 30)
    shifted = tuple(replace(one, value=one.value * 1e6 - 1e9) for one in known)
    for method in ("bayesian", "auto"):
        request = SampleRequest(PLAIN, method, seed=1, trial=30, observations=known)
        assert methods.suggest(request) == methods.suggest(replace(request, observations=shifted))


def test_what_was_tried_is_drawn_again_and_then_replaced():
    drawn = []

    def stubborn(request):
        drawn.append(request.seed)
        return Suggestion({"a": 1}, "bayesian")

    space = Space({"a": IntParameter(1, 3)})
    request = SampleRequest(space, "bayesian", observations=(Observation(0, {"a": 1}, 0.0),))
    made = methods.suggest(request, stubborn)
    assert made.sampler == "random"
    assert made.params != {"a": 1}
    assert "tried before" in made.reason
    assert len(set(drawn)) == 9
    assert methods.suggest(replace(request, duplicates="allow"), stubborn).params == {"a": 1}


def test_a_plugin_is_one_function(monkeypatch):
    def corner(request):
        return {"x": 1.0 if request.trial % 2 else 0.0, "y": 0.0}

    monkeypatch.setattr(methods, "_plugins", lambda: {"corner": corner, "wild": lambda _: {"x": 7}})
    made = methods.suggest(SampleRequest(LINE, "corner", trial=1))
    assert (made.params, made.sampler) == ({"x": 1.0, "y": 0.0}, "corner")
    outside = methods.suggest(SampleRequest(LINE, "wild"))
    assert outside.sampler == "random"
    assert "outside of the space" in outside.reason
    assert methods.check("corner", {}, LINE) == []


def test_the_best_of_other_studies_come_first():
    other = tuple(Observation(i, {"x": i / 10, "y": 0.5}, abs(i / 10 - 0.3)) for i in range(10))
    known: tuple[Observation, ...] = ()
    for number in range(4):
        made = methods.suggest(SampleRequest(LINE, "auto", {}, 0, number, known, prior=(other,)))
        known += (Observation(number, made.params, 1.0),)
    assert [one.params["x"] for one in known[:3]] == [0.3, 0.2, 0.4]
    assert known[3].params["x"] not in (0.3, 0.2, 0.4)
    misfit = (Observation(0, {"x": 5.0, "y": 0.5}, 0.0),)
    made = methods.suggest(SampleRequest(LINE, "auto", prior=(misfit,)))
    assert made.sampler != "warm_start"


def test_scores_are_ranks():
    assert normal_scores([3.0, 1.0, 2.0])[1] == -normal_scores([3.0, 1.0, 2.0])[0]
    scores = normal_scores([1.0, 1.0, float("inf")])
    assert scores[0] == scores[1] < scores[2]


def test_models_get_at_most_a_thousand_trials():
    rng = random.Random(0)
    many = [
        Observation(i, {"x": 0.0}, None if i % 500 == 7 else rng.random()) for i in range(10_000)
    ]
    kept = thinned(many)
    assert 990 <= len(kept) <= 1000
    assert kept == sorted(kept, key=lambda one: one.number)
    numbers = {one.number for one in kept}
    assert {one.number for one in many if one.is_running} <= numbers
    ended = [one for one in many if not one.is_running]
    assert {one.number for one in sorted(ended, key=lambda one: one.value)[:190]} <= numbers
    assert {one.number for one in ended[-290:]} <= numbers
    assert thinned(kept) == kept


def test_a_trial_that_ended_without_a_value_counts_as_worse_than_all_others():
    known = (Observation(0, {"x": 0.5}, 4.0), Observation(1, {"x": 0.5}, float("nan")))
    scores = history(SampleRequest(LINE, observations=known)).scores
    assert scores[1] > 0 > scores[0]


def test_running_trials_keep_others_away():
    x = np.linspace(0, 0.5, 6)[:, None]
    place, nothing = np.array([[0.9]]), np.empty((0, 1))
    data = (x, x[:, 0] - 0.25, np.zeros(6), np.array([0]))
    (mean,), (deviation,) = GaussianProcess(*data, nothing).predict(place)
    (mean_after,), (deviation_after,) = GaussianProcess(*data, place).predict(place)
    assert mean_after == pytest.approx(mean)
    assert deviation_after < 0.5 * deviation


def test_the_model_finds_a_valley():
    space = Space({"x": FloatParameter(0, 1), "k": ChoiceParameter(("a", "b"))})

    def loss(params):
        return (params["x"] - 0.7) ** 2 + (params["k"] == "a")

    for options in ({}, {"acquisition": "ei"}):
        known: tuple[Observation, ...] = ()
        for number in range(25):
            made = methods.suggest(SampleRequest(space, "bayesian", options, 0, number, known))
            known += (Observation(number, made.params, loss(made.params)),)
        assert min(one.value for one in known) < 1e-3


def flat(*places: float) -> tuple[Observation, ...]:
    return tuple(Observation(number, {"x": x}, 1.0) for number, x in enumerate(places))


def test_where_nothing_is_known_to_be_better_the_unknown_is_tried():
    space, near = Space({"x": FloatParameter(0, 1)}), flat(*(0.35 + n / 40 for n in range(13)))

    def suggested(known: tuple[Observation, ...]) -> float:
        made = methods.suggest(SampleRequest(space, "bayesian", {}, 0, 20, known))
        assert made.sampler == "bayesian"
        return made.params["x"]

    first = suggested(near)
    assert not 0.2 < first < 0.8
    # A trial that runs close to that end sends the next one to the other.
    beside = Observation(13, {"x": 0.97 if first > 0.5 else 0.03})
    assert abs(suggested((*near, beside)) - first) > 0.6


@pytest.mark.parametrize("method", ["bayesian", "tpe"])
def test_what_trials_that_run_and_other_studies_say_changes_a_suggestion(method):
    pytest.importorskip("optuna")
    dice = random.Random(5)
    known = tuple(
        Observation(n, {"x": x, "y": dice.random()}, (x - 0.3) ** 2)
        for n, x in enumerate(dice.random() for _ in range(24))
    )
    plain = SampleRequest(LINE, method, {}, 0, 40, known)
    asked = methods.suggest(plain).params
    running = tuple(Observation(n, dict(asked)) for n in range(24, 30))
    earlier = tuple(Observation(n, {"x": 0.9, "y": n / 40}, -1.0) for n in range(40))
    others = {
        "another trial": replace(plain, trial=41),
        "running": replace(plain, observations=(*known, *running)),
        "other studies": replace(plain, observations=known, prior=(earlier,)),
    }
    found = {name: methods.propose_here(one).params for name, one in others.items()}
    assert methods.propose_here(plain).params == asked
    assert all(params != asked for params in found.values()), found


def test_a_long_study_goes_on_with_a_faster_model(monkeypatch):
    monkeypatch.setattr(methods, "_has", lambda module: True)
    for count, expected in ((500, "bayesian"), (501, "tpe")):
        request = SampleRequest(LINE, "bayesian", observations=trials(LINE, count))
        assert methods.chosen_method(request) == expected


def test_trials_of_other_studies_outside_of_the_space_are_not_learned_from():
    earlier = tuple(Observation(n, {"x": x, "y": 0.5}, x) for n, x in enumerate((0.5, 3.0)))
    assert history(SampleRequest(LINE, prior=(earlier,))).foreign == ({"x": 0.5, "y": 0.5},)
