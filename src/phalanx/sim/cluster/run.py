"""The result of a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.sim.audit.auditor import Auditor
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.cluster.timeline import Timeline
from phalanx.sim.model import SimulatedJob, SimulationSetup, SlotTimes


@dataclass(slots=True)
class Result:
    """A finished simulation."""

    policy: str  # name of the policy
    runs: dict[int, SimulatedJob]  # jobs by number
    slot_times: SlotTimes  # slot-seconds by use
    setup: SimulationSetup  # the inputs besides jobs and policy
    end_s: float  # end of the simulation, virtual time
    num_passes: int  # planning passes
    wall_s: float  # wall time of the simulation
    lifecycles: JobLifecycles = field(default_factory=JobLifecycles)  # states of the job machine
    timeline: Timeline = field(default_factory=Timeline)  # samples over time
    auditor: Auditor = field(default_factory=Auditor)  # checks of the promises
