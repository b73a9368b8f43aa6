"""What a plan says: who starts, who leaves, who changes size, what is kept for whom, and why."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.placement import Placement
from phalanx.core.reasons import Reason
from phalanx.core.scheduling.snapshot import Hole


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, why the rest stays, and when a wait alone would change the outcome.

    A preemption belongs to the hole of its beneficiary: apply both or neither. `num_steps` counts the
    work of the pass (placements tried, victims looked at), a measure that no clock disturbs.
    """

    starts: tuple[Start, ...]
    stays: tuple[tuple[int, Reason], ...]
    wake_at: int | None = None
    preemptions: tuple[Preemption, ...] = ()
    holes: tuple[Hole, ...] = ()
    resizes: tuple[Resize, ...] = ()
    migrations: tuple[Migration, ...] = ()
    num_steps: int = 0
