"""The values of a simulation: its set-up, the state of each job, and the policy interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.core.gang.placement import Node
from phalanx.core.reasons import Cause
from phalanx.core.scheduling import ClusterIndex, Plan, PlannerConfig, Project
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob


class Oracle(Protocol):
    """The interface of oracle policies: the true work that a job has left."""

    def remaining_s(self, num: int) -> float:
        """Seconds of undisturbed run left."""
        ...


class SchedulingPolicy(Protocol):
    """The interface of the production planner and of the peers."""

    name: str

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Return the plan of one pass."""
        ...


@dataclass(slots=True)
class SimulatedJob:
    """The state of a simulated job; times are seconds of virtual time."""

    job: TraceJob  # the job as it was submitted
    left_s: float  # undisturbed run time left
    first_start_s: float | None = None  # time of the first start
    end_s: float | None = None  # time of completion
    at_s: float = 0.0  # time up to which this state is accounted
    overhead_left_s: float = 0.0  # start-up time left
    factor: float = 1.0  # run time on this placement relative to a good one at full size
    version: int = 0  # events with another version are outdated
    starts: int = 0  # starts so far
    preemptions: int = 0  # preemptions and migrations so far
    failures: int = 0  # failures so far
    resizes: int = 0  # changes of size so far
    attained_slot_s: float = 0.0  # slot-seconds held so far
    slots: int = 0  # slots of the current placement
    scattered: bool = False  # whether the placement spans several of the narrowest domains
    saved_left_s: float = 0.0  # `left_s` as of the last checkpoint
    saved_at_s: float = 0.0  # time of the last checkpoint
    stopping: bool = False  # asked to leave and not yet gone
    waited_s: float = 0.0  # total time in the queue before all starts
    queued_s: float = 0.0  # time at which it last entered the queue
    up_s: float | None = None  # end of the start-up; None once it was reported
    failed_s: float | None = None  # time at which it failed finally

    @property
    def step(self) -> int:
        """The current step; a step is a second of undisturbed work."""
        return int(self.job.duration_s - self.left_s)


@dataclass(slots=True)
class SlotTimes:
    """Slot-seconds by use, and the times of the passes."""

    useful: float = 0.0  # work that is kept
    lost: float = 0.0  # work thrown away by evictions and failures
    overhead: float = 0.0  # starts, restarts, and the time from a stop request to the stop
    slowed: float = 0.0  # excess time on bad placements
    scattered: float = 0.0  # part of `gang` on several of the narrowest domains
    gang: float = 0.0  # held by gangs of several nodes
    avoidable: float = 0.0  # part of `scattered` by gangs that fit the largest leaf domain
    lost_to_failures: float = 0.0  # part of `lost` that failures caused
    held: float = 0.0  # held by jobs in all
    pass_s: list[float] = field(default_factory=list)  # CPU seconds of each pass
    by_project: dict[str, float] = field(default_factory=dict)  # held, by project


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is lost at `at_s` for `for_s`; `notice_s` is the warning given before."""

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
    """The inputs of a simulation besides the jobs and the policy."""

    nodes: Sequence[Node]  # the cluster
    projects: Sequence[Project] = ()  # quotas
    config: PlannerConfig = field(default_factory=PlannerConfig)  # of the production planner
    costs: Costs = field(default_factory=Costs)  # times of starts, saves and restarts
    outages: Sequence[Outage] = ()  # node failures
    crashes: Sequence[Crash] = ()  # rank failures
    pass_s: float = 60.0  # grid of the planning passes
    recheck_s: float = 300.0  # longest time between passes while jobs run and wait
    audit_every: int = 0  # passes between expensive checks; 0: no checks
    until_s: float | None = None  # end of the simulation; None: when all jobs have ended
    deliveries: int = 1  # deliveries of each event to the job machine
    sample_s: float = 3600.0  # grid of the timeline; 0: no samples
    half_life_s: float = 7 * 86_400.0  # half-life of past usage in fair-share accounting
    users: Sequence[UserQuota] = ()  # quotas of users on the whole platform
