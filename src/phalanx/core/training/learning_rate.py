"""How the learning rate follows a global batch that changes with the world size.

Linear up to a batch of 8192, with the square root beyond, where linear scaling stops working
(Goyal and others, 2017). Pure arithmetic; `train` applies the factor around each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LINEAR_UP_TO = 8192
_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
LR_SCALES = tuple(_POWERS)
"""How the rate may follow the number of ranks of the first start."""


def _reach(batch: int, linear_up_to: int) -> float:
    """The scale of the rate for a batch: linear, then with the square root, without a jump."""
    if batch <= linear_up_to:
        return float(batch)
    return math.sqrt(linear_up_to) * math.sqrt(batch)


def factor(base_batch: int, batch: int, linear_up_to: int = LINEAR_UP_TO) -> float:
    """What to multiply a rate by that was chosen for `base_batch`. Raises ValueError below 1."""
    if base_batch < 1 or batch < 1:
        raise ValueError("a batch has at least one sample")
    return _reach(batch, linear_up_to) / _reach(base_batch, linear_up_to)


def world_factor(scale: str, num_places: int) -> float:
    """What to multiply a rate by that was chosen for one rank: `scale` is none, linear or sqrt."""
    return float(max(1, num_places) ** _POWERS[scale])


@dataclass(frozen=True, slots=True)
class Ramp:
    """A factor on its way from `start` to `end`, over `num_steps` steps from `begin_step` on."""

    start: float = 1.0
    end: float = 1.0
    begin_step: int = 0
    num_steps: int = 0

    def at(self, step: int) -> float:
        """The factor of the step that would be the `step`-th, counted from 0."""
        done = step - self.begin_step
        if done >= self.num_steps:
            return self.end
        return self.start + (self.end - self.start) * max(0, done) / self.num_steps

    def towards(self, end: float, step: int, num_steps: int) -> Ramp:
        """The ramp that leads on to `end`, from where this one is; itself when it leads there."""
        if end == self.end:
            return self
        return Ramp(self.at(step), end, step, num_steps)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Ramp:
        """Read back what `to_json` wrote. Raises TypeError when it is something else."""
        return cls(**body)
