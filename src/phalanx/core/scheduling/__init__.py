"""The planner: `plan(input, now) -> Plan`, pure and deterministic.

Rooms, from the bottom: `model` (the planning input, learned durations, entitlement, the plan), `index`
(free slots and queued jobs, kept up to date event by event), `search` (ledger, decisions, and the searches
for victims and for openings), `stages` (one function for each step of a pass), `planner` (the tuple of
stages) and `explain` (why a job waits, and when it may start). Read `planner` first. Nothing here reads a
clock or does any input or output; applying a plan is the work of `services.planning`.
"""

from phalanx.core.scheduling.explain.why import Victim, Why, why, why_victim
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster, EmptyClusters, fits_ever
from phalanx.core.scheduling.model.outcome import Migration, Plan, Preemption, Resize, Start
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    RunningJob,
)
from phalanx.core.scheduling.model.policies import DEFAULT_POLICY, NAMED_POLICIES, PURPOSES
from phalanx.core.scheduling.planner import plan, plan_pass

__all__ = [
    "DEFAULT_POLICY",
    "NAMED_POLICIES",
    "PURPOSES",
    "ClusterIndex",
    "EmptyCluster",
    "EmptyClusters",
    "Migration",
    "Plan",
    "PlannerConfig",
    "PlanningInput",
    "Preemption",
    "Project",
    "QueuedJob",
    "Reservation",
    "Resize",
    "RunningJob",
    "Start",
    "Victim",
    "Why",
    "fits_ever",
    "plan",
    "plan_pass",
    "why",
    "why_victim",
]
