"""Params as points of the unit cube, and points as features of a model, in numpy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from phalanx.core.search.expressions import Value
from phalanx.core.search.space import ChoiceParameter, FloatParameter, IntParameter, Params, Space

Array = NDArray[np.float64]


class SpaceEncoding:
    """Points of a space: one coordinate in [0, 1] for each searched parameter, NaN where it is inactive."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.names = space.searched
        self._parameters = [space.parameters[name] for name in self.names]
        #: the number of the parameter that each column of `features` belongs to
        self.owners = np.array(
            [
                number
                for number, one in enumerate(self._parameters)
                for _ in range(len(one.values) if isinstance(one, ChoiceParameter) else 1)
            ]
        )

    def points(self, trials: list[Params] | tuple[Params, ...]) -> Array:
        """The points of trials, (trials, parameters)."""
        rows = [
            [
                one.unit_of(params[name]) if name in params else math.nan
                for name, one in zip(self.names, self._parameters, strict=True)
            ]
            for params in trials
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.names))

    def features(self, points: Array) -> Array:
        """Inputs of a model, (points, columns): choices one-hot, two of them 1 apart."""
        columns: list[Array] = []
        for number, one in enumerate(self._parameters):
            at = points[:, number]
            if isinstance(one, ChoiceParameter):
                index = np.floor(np.nan_to_num(at, nan=-1.0) * len(one.values))
                hot = index[:, None] == np.arange(len(one.values))
                columns.append(hot / math.sqrt(2.0))
            else:
                columns.append(np.nan_to_num(at, nan=0.5)[:, None])
        return np.concatenate(columns, axis=1)

    def random(self, rng: np.random.Generator, count: int) -> Array:
        """Random points that the space allows; fewer than `count` if constraints refuse most."""
        found = self.settle(rng.random((count, len(self.names))))
        for _ in range(4):
            if len(found) * 4 >= count:
                break
            found = np.concatenate([found, self.settle(rng.random((count, len(self.names))))])
        return found

    def near(self, rng: np.random.Generator, points: Array, count: int, spread: float) -> Array:
        """Allowed points beside each of `points`, `count` each, some coordinates moved by `spread`."""
        base = np.repeat(points, count, axis=0)
        base = np.where(np.isnan(base), rng.random(base.shape), base)
        moved = rng.random(base.shape) < max(1.5 / len(self.names), 0.3)
        step = rng.normal(0.0, spread, base.shape)
        for number, one in enumerate(self._parameters):
            if isinstance(one, ChoiceParameter):
                step[:, number] = rng.random(len(base)) - base[:, number]
            elif one.num_levels is not None:
                level = 1.0 / one.num_levels
                drawn = step[:, number]
                step[:, number] = np.sign(drawn) * np.maximum(np.abs(drawn), level)
        return self.settle(np.clip(base + moved * step, 0.0, math.nextafter(1.0, 0.0)))

    def settle(self, points: Array) -> Array:
        """Points moved to the nearest possible values, without those that constraints refuse."""
        points = self._snapped(points)
        if not self.space.is_conditional and not self.space.constraints:
            return points
        kept = []
        for row in points:
            params = self.params(row)
            if self.space.allows(params):
                active = [name in params for name in self.names]
                kept.append(np.where(active, row, math.nan))
        return np.array(kept).reshape(len(kept), len(self.names))

    def params(self, point: Array) -> dict[str, Value]:
        """The params at a point, constants included, inactive ones left out."""
        at = dict(zip(self.names, point.tolist(), strict=True))
        params: dict[str, Value] = {}
        for name in self.space.order:
            if self.space.is_active(name, params):
                unit = at.get(name, 0.5)
                params[name] = self.space.parameters[name].value_at(
                    0.5 if math.isnan(unit) else min(unit, math.nextafter(1.0, 0.0))
                )
        return params

    def _snapped(self, points: Array) -> Array:
        points = points.copy()
        for number, one in enumerate(self._parameters):
            at = points[:, number]
            if isinstance(one, IntParameter) and one.log:
                low, high = math.log(one.low - 0.5), math.log(one.high + 0.5)
                whole = np.clip(np.round(np.exp(low + at * (high - low))), one.low, one.high)
                points[:, number] = (np.log(whole) - low) / (high - low)
            elif one.num_levels is not None:
                levels = one.num_levels
                index = np.minimum(np.floor(at * levels), levels - 1)
                points[:, number] = (index + 0.5) / levels
            elif isinstance(one, FloatParameter):
                points[:, number] = np.clip(at, 0.0, 1.0)
        return points
