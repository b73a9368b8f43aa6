"""Bayesian optimisation: a Gaussian process and a bound on what may be gained (GP-UCB)."""

from __future__ import annotations

import random

import numpy as np

from phalanx.core.search.draw import random_params
from phalanx.core.search.expressions import Value
from phalanx.core.search.sampling import SampleRequest, Suggestion
from phalanx.core.search.space import cell_of
from phalanx.search.encoding import Array, SpaceEncoding
from phalanx.search.gaussian_process import GaussianProcess
from phalanx.search.history import TrialHistory, history, number_option

DEFAULT_KAPPA = 2.0
DEFAULT_INIT_POINTS = 10
#: Trials that the model learns from: all, or the best, the newest and a sample.
MOST_TRIALS = 300
_RANDOM = 300
_NEAR = 200
_ROUNDS = (0.1, 0.05, 0.02)
_REFINED = 5
#: Variance added to results of other studies.
_FOREIGN_NOISE = 1.0


def suggest_bayesian(request: SampleRequest) -> Suggestion:
    """Params with the lowest lower confidence bound, or `acquisition: ei`, the highest expected gain.

    Options: `kappa` (deviations below the mean, 2), `acquisition` (`ucb` or `ei`), `init_points`
    (random trials before the model, 10). Srinivas and others 2010; running trials as in `GaussianProcess`.
    """
    known = history(request, MOST_TRIALS)
    init_points = int(number_option(request, "init_points", DEFAULT_INIT_POINTS))
    if len(known.finished) < max(init_points, 2) and not known.foreign:
        params = random_params(request.space, request.seed, request.trial)
        return Suggestion(params or {}, "random", reason=f"{len(known.finished)} results so far")
    encoding = SpaceEncoding(request.space)
    rng = np.random.default_rng(
        random.Random(f"{request.seed}/{request.trial}/bayesian").getrandbits(64)
    )
    params = _best(request, known, encoding, rng)
    if params is None:
        params = random_params(request.space, request.seed, request.trial) or {}
        return Suggestion(params, "random", reason="constraints refuse nearly all candidates")
    return Suggestion(params, "bayesian", VERSION)


VERSION = "gp-1"


def _best(
    request: SampleRequest, known: TrialHistory, encoding: SpaceEncoding, rng: np.random.Generator
) -> dict[str, Value] | None:
    finished = encoding.points(known.finished)
    scores = np.array(known.scores)
    data = np.concatenate([finished, encoding.points(known.foreign)])
    model = GaussianProcess(
        encoding.features(data),
        np.concatenate([scores, np.array(known.foreign_scores)]),
        np.repeat([0.0, _FOREIGN_NOISE], [len(finished), len(data) - len(finished)]),
        encoding.owners,
        encoding.features(encoding.points(known.running)),
    )
    kappa = number_option(request, "kappa", DEFAULT_KAPPA)
    incumbent = float(model.predict(encoding.features(data))[0].min())
    by_gain = request.options.get("acquisition") == "ei"

    def cost(points: Array) -> Array:
        mean, deviation = model.predict(encoding.features(points))
        if by_gain:
            return -_expected_gain(incumbent - mean, deviation)
        return mean - kappa * deviation

    top = data[np.argsort(np.concatenate([scores, known.foreign_scores]), kind="stable")[:_REFINED]]
    points = np.concatenate(
        [encoding.random(rng, _RANDOM), encoding.near(rng, top, _NEAR // len(top), 0.1)]
    )
    if not len(points):
        return None
    costs = cost(points)
    for spread in _ROUNDS:
        leaders = points[np.argsort(costs, kind="stable")[:_REFINED]]
        nearby = encoding.near(rng, leaders, 20, spread)
        if len(nearby):
            points = np.concatenate([points, nearby])
            costs = np.concatenate([costs, cost(nearby)])
    tried = {cell_of(params) for params in (*known.finished, *known.running)}
    for index in np.argsort(costs, kind="stable"):
        params = encoding.params(points[index])
        if request.duplicates == "allow" or cell_of(params) not in tried:
            return params
    return None


def _expected_gain(better: Array, deviation: Array) -> Array:
    """The expected improvement over the incumbent (Mockus 1975)."""
    ratio = better / deviation
    density = np.exp(-0.5 * ratio * ratio) / np.sqrt(2.0 * np.pi)
    # Abramowitz and Stegun 7.1.26 for the error function; numpy has none.
    size = np.abs(ratio) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * size)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    below = 0.5 * (1.0 + np.sign(ratio) * (1.0 - series * np.exp(-size * size)))
    gain: Array = better * below + deviation * density
    return gain
