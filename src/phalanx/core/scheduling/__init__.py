"""The planner: `plan(snapshot, now) -> Plan`, pure and deterministic.

One stage a file: `entitlement`, `order` and `estimates`, `topology`, `reservations`, `preemption`,
`moves`, `elastic`, `explain`; `planner` runs them. `world` and `slots` are the incremental indexes. What
lives here takes time as an argument, reads nothing, and returns decisions; applying them is others' work.
"""

from phalanx.core.scheduling.explain.why import Victim, Why, why, why_victim
from phalanx.core.scheduling.index.cluster_index import World
from phalanx.core.scheduling.model.outcome import Migration, Plan, Preemption, Resize, Start
from phalanx.core.scheduling.model.reservation import Hole
from phalanx.core.scheduling.model.snapshot import Held, Project, Snapshot, Terms, Waiting
from phalanx.core.scheduling.planner import fits_ever, plan, plan_pass

__all__ = [
    "Held",
    "Hole",
    "Migration",
    "Plan",
    "Preemption",
    "Project",
    "Resize",
    "Snapshot",
    "Start",
    "Terms",
    "Victim",
    "Waiting",
    "Why",
    "World",
    "fits_ever",
    "plan",
    "plan_pass",
    "why",
    "why_victim",
]
