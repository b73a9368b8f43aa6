"""The result of a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.sim.audit.auditor import Auditor
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.cluster.timeline import Timeline
from phalanx.sim.model import SimulatedJob, SimulationSetup, SlotTimes


@dataclass(slots=True)
class Result:
    """A finished run."""

    policy: str
    runs: dict[int, SimulatedJob]
    slot_times: SlotTimes
    setup: SimulationSetup
    end_s: float
    num_passes: int
    wall_s: float
    lifecycles: JobLifecycles = field(default_factory=JobLifecycles)
    timeline: Timeline = field(default_factory=Timeline)
    auditor: Auditor = field(default_factory=Auditor)
