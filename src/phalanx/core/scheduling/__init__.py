"""The planner: `plan(snapshot, now) -> Plan`, pure and deterministic.

One stage a file: `entitlement`, `order` and `estimates`, `topology`, `reservations`, `preemption`,
`moves`, `elastic`, `explain`; `planner` runs them. `cluster` and `slots` are the incremental indexes. What
lives here takes time as an argument, reads nothing, and returns decisions; applying them is others' work.
"""

from phalanx.core.scheduling.explain.why import Victim, Why, why, why_victim
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.outcome import Migration, Plan, Preemption, Resize, Start
from phalanx.core.scheduling.model.planning_input import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    RunningJob,
)
from phalanx.core.scheduling.model.reservation import Reservation
from phalanx.core.scheduling.planner import fits_ever, plan, plan_pass

__all__ = [
    "ClusterIndex",
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
