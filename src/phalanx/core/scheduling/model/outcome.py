"""The plan of a pass: starts, preemptions, resizes, migrations, reservations and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import overload

from phalanx.core.gang.placement import Placement
from phalanx.core.reasons import Reason
from phalanx.core.scheduling.model.planner_state import Reservation


@dataclass(frozen=True, slots=True)
class Start:
    """Place this job's next attempt here."""

    job: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Preemption:
    """Ask this job to save and leave. `price_slot_s` is what that is expected to cost."""

    job: int
    beneficiary: int
    price_slot_s: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Resize:
    """Move an elastic job to this placement, which has another number of nodes."""

    job: int
    placement: Placement
    reason: Reason


@dataclass(frozen=True, slots=True)
class Migration:
    """Save this job, and start it again here, because that makes room for `beneficiary`."""

    job: int
    placement: Placement
    beneficiary: int
    price_slot_s: float


class PendingReasons(Sequence[tuple[int, Reason]]):
    """A reason for every job that stays queued, by number; jobs of one class share it.

    Five thousand queued jobs share a few dozen reasons, so they are written out only when asked for.
    """

    def __init__(
        self,
        single: Mapping[int, Reason],
        classes: Sequence[tuple[Reason, tuple[tuple[int, int], ...]]],
        started: Set[int],
    ) -> None:
        self._single = single
        self._lines = classes
        self._started = started
        self._all: tuple[tuple[int, Reason], ...] | None = None

    def _written_out(self) -> tuple[tuple[int, Reason], ...]:
        if self._all is None:
            found = dict(self._single)
            for reason, jobs in self._lines:
                for _, num in jobs:
                    found.setdefault(num, reason)
            self._all = tuple((n, found[n]) for n in sorted(found) if n not in self._started)
        return self._all

    def __len__(self) -> int:
        return len(self._written_out())

    @overload
    def __getitem__(self, at: int) -> tuple[int, Reason]: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[tuple[int, Reason], ...]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, Reason] | tuple[tuple[int, Reason], ...]:
        return self._written_out()[at]

    def __iter__(self) -> Iterator[tuple[int, Reason]]:
        return iter(self._written_out())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingReasons | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._written_out())

    def __repr__(self) -> str:
        return repr(self._written_out())


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of a pass, pending reasons, and when waiting alone changes the outcome.

    A preemption belongs to the reservation of its beneficiary: apply both or neither. `num_steps`
    counts the work of the pass (placements tried, victims considered), independent of any clock.
    """

    starts: tuple[Start, ...]
    pending_reasons: Sequence[tuple[int, Reason]]
    wake_at: int | None = None
    preemptions: tuple[Preemption, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    resizes: tuple[Resize, ...] = ()
    migrations: tuple[Migration, ...] = ()
    num_steps: int = 0
