"""Decisions of the training guards: reactions to bad steps, spike detection, and stored state.

What one generation learns for the next (batches to pass over, smaller pieces, checkpoints to disregard)
is a `GuardState`; `train` keeps it in a file beside the checkpoints.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

SCHEMA = 1
GUARD_STATE_FILE = "guards.json"


class GuardPolicy(StrEnum):
    """The reaction to a step that the guard rejects."""

    OFF = "off"
    SKIP = "skip"
    ROLLBACK = "rollback"
    STOP = "stop"


class FaultOrigin(StrEnum):
    """The origin of a fault, found by computing the same batch a second time."""

    UNKNOWN = "unknown"
    DATA = "data"
    HARDWARE = "hardware"


def origin(first: int, second: int | None) -> FaultOrigin:
    """From fingerprints of both gradients; the second is None when it came out finite.

    The same wrong bits twice come from the data or the model. Other bits from the same input mean a
    machine that cannot compute.
    """
    return FaultOrigin.DATA if second is not None and first == second else FaultOrigin.HARDWARE


class SpikeDetector:
    """Says when a loss jumps far above its own recent past.

    A value is a spike when it is not finite, or lies more than `deviations` median absolute
    deviations (scaled to a normal distribution) above the median of the last `window` values, and at
    least `ratio` times as far from zero. Silent until `window` values are known; spikes do not enter.
    """

    def __init__(self, window: int = 32, deviations: float = 8.0, ratio: float = 1.5) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._deviations, self._ratio = deviations, ratio

    def observe(self, value: float) -> bool:
        """Add one value; returns whether it is a spike."""
        if not math.isfinite(value):
            return True
        if value > self.above:
            return True
        self._values.append(value)
        return False

    @property
    def above(self) -> float:
        """Values above this are spikes; infinite while too few are known."""
        if len(self._values) != self._values.maxlen:
            return math.inf
        middle = _median(self._values)
        spread = 1.4826 * _median(abs(one - middle) for one in self._values)
        return middle + max(self._deviations * spread, (self._ratio - 1.0) * abs(middle))


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True, slots=True)
class Skip:
    """Positions `lo` to `hi` of one pass that no step may use again, and why."""

    total_passes: int
    lo: int
    hi: int
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class Undo:
    """Checkpoints of this generation and earlier ones that hold `step` or later are not to be used."""

    attempt: int
    generation: int
    step: int

    def covers(self, attempt: int, generation: int, step: int) -> bool:
        """Whether a checkpoint of this place is one of them."""
        return (attempt, generation) <= (self.attempt, self.generation) and step >= self.step


@dataclass(frozen=True, slots=True)
class Suspect:
    """A step with a jump of the loss, to be recomputed from the same batch and weights.

    `seen` has each rank's loss of it, bit by bit (`float.hex`; empty where a rank logged none), `above`
    is what counted as a jump.
    """

    total_passes: int
    lo: int
    hi: int
    step: int
    above: float
    seen: tuple[str, ...]

    def skip(self) -> Skip:
        """The skip of this step's batch."""
        return Skip(self.total_passes, self.lo, self.hi, self.step, "spike")

    def verdict(self, again: Sequence[str]) -> tuple[FaultOrigin, tuple[int, ...]]:
        """The origin of the fault and the ranks concerned, from what each rank computed again.

        The same bits: the data's. Other bits and no jump: a machine's. Another jump with other bits is
        not told apart: the batch looks bad, and so does the machine, or the resume was not exact.
        """
        pairs = list(zip(self.seen, again, strict=False))
        others = tuple(rank for rank, (one, two) in enumerate(pairs) if one != two)
        if len(again) == len(self.seen) and not others:
            return FaultOrigin.DATA, tuple(r for r, one in enumerate(again) if self._jumps(one))
        jumps = tuple(rank for rank, value in enumerate(again) if self._jumps(value))
        return (FaultOrigin.UNKNOWN, jumps) if jumps else (FaultOrigin.HARDWARE, others)

    def _jumps(self, value: str) -> bool:
        number = float.fromhex(value) if value else 0.0
        return not math.isfinite(number) or number > self.above


@dataclass(frozen=True, slots=True)
class GuardState:
    """The state that the guards pass from one generation to the next.

    `halvings` counts how often memory was too small, last in the generation `halved_in`, which is
    (attempt, generation). `suspect` is a step that the next generation judges.
    """

    skips: tuple[Skip, ...] = ()
    halvings: int = 0
    undo: Undo | None = None
    suspect: Suspect | None = None
    halved_in: tuple[int, int] | None = None

    def skipping(self, skip: Skip) -> GuardState:
        """A copy with one more batch to skip."""
        return self if skip in self.skips else replace(self, skips=(*self.skips, skip))

    def intervals(self, total_passes: int) -> tuple[tuple[int, int], ...]:
        """The intervals to skip in one pass over the data."""
        return tuple((one.lo, one.hi) for one in self.skips if one.total_passes == total_passes)

    @property
    def pieces(self) -> int:
        """The number of pieces that each micro-batch is split into."""
        return 1 << self.halvings

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"schema": SCHEMA, **asdict(self), "skips": [asdict(one) for one in self.skips]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> GuardState:
        """Read back what `to_json` wrote. Raises ValueError when it is something else."""
        if body.get("schema") != SCHEMA:
            raise ValueError(f"guards schema {body.get('schema')!r}, expected {SCHEMA}")
        try:
            undo, suspect, halved = body["undo"], body.get("suspect"), body.get("halved_in")
            return cls(
                tuple(Skip(**one) for one in body["skips"]),
                int(body["halvings"]),
                Undo(**undo) if undo is not None else None,
                Suspect(**{**suspect, "seen": tuple(suspect["seen"])}) if suspect else None,
                (int(halved[0]), int(halved[1])) if halved else None,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a guards file: {error}") from error


def num_pieces(local_batch: int, max_micro_batch: int | None, state: GuardState) -> int:
    """In how many pieces to give out a micro-batch of which the largest rank gets `local_batch`."""
    first = 1 if max_micro_batch is None else -(-local_batch // max_micro_batch)
    return max(1, min(local_batch, first * state.pieces))
