"""PB2: params of a population's forks by a Gaussian process over time (Parker-Holder and others 2020).

The model learns how the objective changed in each interval with the params of that interval; what was
measured long ago counts less. A fork gets the params with the best upper confidence bound on the change.
"""

from __future__ import annotations

import math
import random

import numpy as np

from phalanx.core.search.sampling import Observation, SampleRequest, Suggestion
from phalanx.core.search.space import ChoiceParameter
from phalanx.search.encoding import Array, SpaceEncoding
from phalanx.search.gaussian_process import GaussianProcess
from phalanx.search.history import normal_scores, number_option

VERSION = "pb2-1"
#: Intervals that the model learns from: the newest.
MOST_CHANGES = 300
_FEWEST = 2
_RANDOM, _NEAR = 300, 60


def suggest_pb2(request: SampleRequest) -> Suggestion:
    """Params of a fork. Choices stay those of its parent; option `kappa` is the weight of uncertainty.

    Without `kappa` it grows with the number of intervals as in the paper: sqrt(0.2 + log(0.4 n)).
    """
    fork = request.fork
    assert fork is not None
    encoding = SpaceEncoding(request.space)
    rng = np.random.default_rng(
        random.Random(f"{request.seed}/{request.trial}/pb2").getrandbits(64)
    )
    parent = encoding.points([fork.params])
    points = _with_choices_of(
        encoding,
        parent,
        np.concatenate(
            [
                encoding.random(rng, _RANDOM),
                *(encoding.near(rng, parent, _NEAR, s) for s in (0.2, 0.05)),
            ]
        ),
    )
    if not len(points):
        return Suggestion(dict(fork.params), "pb2", VERSION, reason="constraints refuse all others")
    ended = [one for one in request.observations if not one.is_running][-MOST_CHANGES:]
    if sum(one.is_finite for one in ended) < _FEWEST:
        said = f"{len(ended)} intervals so far"
        return Suggestion(encoding.params(points[0]), "random", reason=said)
    running = [one for one in request.observations if one.is_running]
    model, now = _model(encoding, fork.unit, ended, running)
    beta = 0.2 + math.log(max(0.4 * len(ended), 1.0))
    mean, deviation = model.predict(encoding.features(points), now)
    cost = mean - number_option(request, "kappa", math.sqrt(beta)) * deviation
    best = int(np.argmin(cost))
    return Suggestion(encoding.params(points[best]), "pb2", VERSION)


def _model(
    encoding: SpaceEncoding, begins: int, ended: list[Observation], running: list[Observation]
) -> tuple[GaussianProcess, float]:
    """The model of all intervals, and the time of the fork's first one; times count comparisons."""
    units = sorted({one.unit or 0 for one in (*ended, *running)} | {begins})
    at = {unit: float(place) for place, unit in enumerate(units)}
    now = at[begins] + 1.0
    # An answer may be given while others were drawn: those are trained from now on.
    times = [at[one.unit or 0] for one in ended]
    times += [now if one.unit is None else at[one.unit] for one in running]
    values = [one.value if one.is_finite and one.value is not None else math.inf for one in ended]
    model = GaussianProcess(
        encoding.features(encoding.points([one.params for one in ended])),
        np.array(normal_scores(values)),
        np.zeros(len(ended)),
        encoding.owners,
        encoding.features(encoding.points([one.params for one in running])),
        np.array(times),
    )
    return model, now


def _with_choices_of(encoding: SpaceEncoding, parent: Array, points: Array) -> Array:
    points = points.copy()
    for number, name in enumerate(encoding.names):
        if isinstance(encoding.space.parameters[name], ChoiceParameter):
            points[:, number] = parent[0, number]
    return encoding.settle(points)
