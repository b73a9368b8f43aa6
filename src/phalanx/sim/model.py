"""The values of a simulation: its set-up, the life of each job, and the interface of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.core.gang.placement import Node
from phalanx.core.reasons import Cause
from phalanx.core.scheduling import ClusterIndex, Plan, PlannerConfig, Project
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob


class Oracle(Protocol):
    """What only an oracle may ask: the ideal seconds that a job still needs."""

    def remaining_s(self, num: int) -> float:
        """Seconds of undisturbed run left."""
        ...


class SchedulingPolicy(Protocol):
    """The seam behind which the production planner and its peers sit."""

    name: str

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One pass."""
        ...


@dataclass(slots=True)
class SimulatedJob:
    """A job's life so far, in seconds of virtual time."""

    job: TraceJob
    left_s: float
    first_start_s: float | None = None
    end_s: float | None = None
    at_s: float = 0.0
    overhead_left_s: float = 0.0
    factor: float = 1.0
    version: int = 0
    starts: int = 0
    preemptions: int = 0
    failures: int = 0
    resizes: int = 0
    attained_slot_s: float = 0.0
    slots: int = 0
    scattered: bool = False
    saved_left_s: float = 0.0
    saved_at_s: float = 0.0
    stopping: bool = False
    waited_s: float = 0.0
    queued_s: float = 0.0
    up_s: float | None = None
    failed_s: float | None = None
    insisted: int = 0


@dataclass(slots=True)
class SlotTimes:
    """Slot-seconds by what they were spent on, and what the passes cost."""

    useful: float = 0.0
    lost: float = 0.0
    overhead: float = 0.0
    slowed: float = 0.0
    scattered: float = 0.0
    gang: float = 0.0
    avoidable: float = 0.0
    lost_to_failures: float = 0.0
    held: float = 0.0
    pass_s: list[float] = field(default_factory=list)
    needless: int = 0
    by_project: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node goes away at `at_s` for `for_s`; `notice_s` is the warning given before."""

    at_s: float
    node: str
    for_s: float
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Crash:
    """At `at_s` a rank dies of `cause` in the job that holds `slot` of `node`, if there is one."""

    at_s: float
    node: str
    slot: int
    cause: Cause = Cause.RANK_CRASH


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """Everything a run depends on besides the jobs and the policy.

    `deliveries` above one repeats every message to the job machine. `sample_s` is the grid of the
    timeline; 0 keeps none. What a project used counts half after `half_life_s`.
    """

    nodes: Sequence[Node]
    projects: Sequence[Project] = ()
    config: PlannerConfig = field(default_factory=PlannerConfig)
    costs: Costs = field(default_factory=Costs)
    outages: Sequence[Outage] = ()
    crashes: Sequence[Crash] = ()
    pass_s: float = 60.0
    recheck_s: float = 300.0
    audit_every: int = 0
    until_s: float | None = None
    deliveries: int = 1
    sample_s: float = 3600.0
    half_life_s: float = 7 * 86_400.0
