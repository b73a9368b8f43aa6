"""The tree-structured Parzen estimator of Optuna, asked as a function.

Each suggestion has a sampler of its own, seeded by (study, trial), and gets the trials in the order of
their numbers; trials without a result are given as running, so that Optuna's constant liar keeps
parallel trials apart. Nothing of it outlives the call.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Container
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from phalanx.core.search.expressions import Value
from phalanx.core.search.sampling import SampleRequest, Suggestion
from phalanx.core.search.space import (
    ChoiceParameter,
    ConstantParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Space,
)
from phalanx.search.history import history, number_option

VERSION = f"optuna-{optuna.__version__}"
optuna.logging.set_verbosity(optuna.logging.ERROR)


class _GivenTrials(optuna.storages.InMemoryStorage):  # type: ignore[misc]
    """A storage that holds the trials it is given; adding them one by one would copy each."""

    def __init__(self, trials: list[FrozenTrial]) -> None:
        super().__init__()
        self._given = trials

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """The given trials."""
        return [one for one in self._given if states is None or one.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Keep nothing: other processes have no part in this study."""


def suggest_tpe(request: SampleRequest) -> Suggestion:
    """Params where good trials are dense and bad ones rare (Bergstra and others 2011)."""
    space = request.space
    seed = random.Random(f"{request.seed}/{request.trial}/tpe").getrandbits(32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed,
            group=space.is_conditional,
            n_startup_trials=max(int(number_option(request, "init_points", 10)), 1),
        )
    trials = frozen_trials(request)
    study = optuna.create_study(storage=_GivenTrials(trials), sampler=sampler)
    distributions = distributions_of(space)
    trial = _frozen(space, distributions, len(trials), None, {})
    if space.is_conditional:
        together = sampler.infer_relative_search_space(study, trial)
    else:
        together = {name: distributions[name] for name in sorted(distributions)}
    drawn = sampler.sample_relative(study, trial, together) if together else {}
    params: dict[str, Value] = {}
    for name in space.order:
        one = space.parameters[name]
        if not space.is_active(name, params):
            continue
        if name not in distributions:
            params[name] = one.level(0)
        elif name in drawn:
            params[name] = _inside(one, drawn[name])
        else:
            value = sampler.sample_independent(study, trial, name, distributions[name])
            params[name] = _inside(one, value)
    return Suggestion(params, "tpe", VERSION)


def frozen_trials(request: SampleRequest) -> list[FrozenTrial]:
    """The trials of a request as Optuna's: finished ones with their scores, others as running."""
    known = history(request)
    distributions = distributions_of(request.space)
    told: list[tuple[dict[str, Value], float | None]] = [
        *zip(known.foreign, known.foreign_scores, strict=True),
        *zip(known.finished, known.scores, strict=True),
        *((params, None) for params in known.running),
    ]
    return [
        _frozen(request.space, distributions, number, score, params)
        for number, (params, score) in enumerate(told)
    ]


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Optuna's distributions of the parameters that have more than one value.

    Choices are told by their number: Optuna takes 1 and true for the same value.
    """
    return {
        name: _distribution(space.parameters[name])
        for name in space.searched
        if space.parameters[name].num_levels != 1
    }


def study_of(trials: list[FrozenTrial]) -> optuna.Study:
    """A study that holds nothing but these trials, to be minimised."""
    return optuna.create_study(storage=_GivenTrials(trials))


def _distribution(one: Parameter) -> BaseDistribution:
    if isinstance(one, FloatParameter):
        high = one.high if one.step is None else one.level((one.num_levels or 1) - 1)
        return FloatDistribution(one.low, high, log=one.log, step=one.step)
    if isinstance(one, IntParameter):
        return IntDistribution(one.low, one.level(one.num_levels - 1), log=one.log, step=one.step)
    return CategoricalDistribution(tuple(range(one.num_levels)))


def _frozen(
    space: Space,
    distributions: dict[str, BaseDistribution],
    number: int,
    score: float | None,
    params: dict[str, Value],
) -> FrozenTrial:
    told = {
        name: one.index_of(value) if isinstance(one, ChoiceParameter) else value
        for name, value in params.items()
        if name in distributions and (one := space.parameters[name])
    }
    return FrozenTrial(
        number=number,
        state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
        value=score,
        datetime_start=None,
        datetime_complete=None,
        params=told,
        distributions={name: distributions[name] for name in told},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
        trial_id=number,
    )


def _inside(one: Parameter, value: Any) -> Value:
    """A value of Optuna as the parameter's own, within its bounds to the last digit."""
    if isinstance(one, ChoiceParameter):
        return one.values[int(value)]
    if isinstance(one, ConstantParameter):
        return one.value
    if isinstance(one, IntParameter):
        return min(max(int(value), one.low), one.high)
    number = min(max(float(value), one.low), one.high)
    if one.step is None:
        return number
    return one.level(min(round((number - one.low) / one.step), (one.num_levels or 1) - 1))
