"""What a run may be told about compression, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from phalanx.kit.text import nearest

METHODS = ("none", "fp16", "bf16", "powersgd", "topk", "randomk", "auto")
LOSSY = ("powersgd", "topk", "randomk")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """How gradients travel between replicas.

    `rank` is PowerSGD's; `fraction` of each tensor's elements is what topk and randomk send. Steps before
    `start_step` send everything. `error_feedback` adds what was not sent to the next step's gradient.
    `candidates` are what auto tries, the most faithful first: it takes the first that is not clearly
    slower than the fastest.
    """

    method: str = "none"
    rank: int = 1
    fraction: float = 0.01
    start_step: int = 0
    error_feedback: bool = True
    candidates: tuple[str, ...] = ("none", "bf16", "powersgd")

    @classmethod
    def parse(cls, value: Any) -> CompressionSettings:
        """From a method's name, or a mapping of these fields. Raises ValueError or TypeError."""
        if isinstance(value, CompressionSettings):
            return value
        if value is None or value is False:
            return cls()
        given = dict(value) if isinstance(value, Mapping) else {"method": value}
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                near = nearest(str(key), known)
                raise ValueError(f"{key} is unknown" + (f"; did you mean {near}?" if near else ""))
        if "candidates" in given:
            given["candidates"] = tuple(given["candidates"])
        made = cls(**given)
        made._check()
        return made

    def _check(self) -> None:
        _known(self.method, METHODS, "method")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"rank must be a whole number, at least 1, not {self.rank!r}")
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction!r}")
        if not isinstance(self.start_step, int) or self.start_step < 0:
            raise ValueError(f"start_step must be a whole number, not {self.start_step!r}")
        if not isinstance(self.error_feedback, bool):
            raise ValueError("error_feedback must be true or false")
        if not self.candidates:
            raise ValueError("candidates must name at least one method")
        for name in self.candidates:
            _known(name, METHODS[:-1], "candidates")

    @property
    def compresses(self) -> bool:
        """Whether gradients travel in any other way than DDP's own."""
        return self.method != "none"


def _known(name: Any, allowed: tuple[str, ...], field: str) -> None:
    if name not in allowed:
        near = nearest(str(name), allowed)
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"{field} must be one of {', '.join(allowed)}, not {name!r}{hint}")
