"""The values that cross between a study and its samplers: trials so far, requests, suggestions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from phalanx.core.search.expressions import Value
from phalanx.core.search.space import Space, cell_of


@dataclass(frozen=True, slots=True)
class Observation:
    """A trial as samplers know it, at one unit of training.

    `value` is oriented: lower is better. None means that the trial has no result yet and may get one;
    a value that is not finite, that it ended without one (failed, diverged or rejected). A trial has one
    observation, at the rung that the study learns from; for the fork of a population, where `value` is the
    change for each unit of training, one for each interval.
    """

    number: int
    params: dict[str, Value]
    value: float | None = None
    #: the epoch, step, … at which `value` was measured; None in a study without rungs
    unit: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether a result may still come."""
        return self.value is None

    @property
    def is_finite(self) -> bool:
        """Whether there is a result that a model can learn from."""
        return self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True, slots=True)
class ForkBasis:
    """What a fork is made of: the params of its parent, and the unit that it begins at."""

    params: dict[str, Value]
    unit: int


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Everything that a suggestion depends on; equal requests get equal suggestions."""

    #: the space that params are taken from
    space: Space
    #: the method's name: `random`, `grid`, `qmc`, `tpe`, `bayesian`, `auto`, or that of a plugin
    method: str = "auto"
    #: the method's own options, such as `kappa`
    options: dict[str, Value] = field(default_factory=dict)
    #: the study's seed
    seed: int = 0
    #: the number of the trial that the suggestion is for
    trial: int = 0
    #: the study's trials so far, in the order of their numbers
    observations: tuple[Observation, ...] = ()
    #: trials of other studies to learn from, one tuple for each study
    prior: tuple[tuple[Observation, ...], ...] = ()
    #: whether a suggestion may repeat an earlier trial: `never` or `allow`
    duplicates: str = "never"
    #: for the fork of a population: what it is made of; the observations are changes then
    fork: ForkBasis | None = None

    def known_cells(self) -> set[tuple[tuple[str, bool, Value], ...]]:
        """The params of all trials so far, whatever became of them."""
        return {cell_of(one.params) for one in self.observations}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The params of a new trial, and how they came about."""

    params: dict[str, Value]
    #: the sampler that made them; `random` where a model has too little to learn from
    sampler: str
    version: str = "1"
    #: how many suggestions were drawn and discarded before this one
    sub: int = 0
    #: why it is not the method's own suggestion, or empty
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No further trial is possible: every allowed combination has been tried, or none is allowed."""

    reason: str


def oriented(value: float | None, goal: str) -> float | None:
    """A result as samplers take it: lower is better. `goal` is `minimize` or `maximize`."""
    if value is None or goal == "minimize":
        return value
    return -value
