"""Jobs of a trace: what arrives when, how large it is, and how long it runs alone."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.scheduling import QueuedJob

US = 1_000_000


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job: `duration_s` is its run on a good placement at full size, start-up not counted.

    `sensitivity` is how much a scattered placement slows it. `label` is for reports only. `limit_s` is
    what its user declared. `checkpoint_s` 0: it never saves on its own; `save_s` is what a requested save
    takes, where that is not the same for all. `speeds` of an elastic job: its
    speed on 1, 2, 3… shares beside that at full size; empty means in proportion to the slots.
    `preferred` names a topology level that it insists on for its first `patience_s` in the queue; without
    them the planner decides, as it does for a spec, and its peers insist on nothing.
    `roles` are further parts of the gang, with shapes of their own.
    """

    num: int
    submit_s: float
    duration_s: float
    shape: GangShape
    project: str = ""
    kind: str = ""
    label: str = ""
    priority: int = 50
    sensitivity: float = 0.0
    min_nodes: int | None = None
    limit_s: float | None = None
    checkpoint_s: float = 1800.0
    required: str | None = None
    preferred: str | None = None
    patience_s: float | None = None
    pools: tuple[str, ...] = ()
    speeds: tuple[float, ...] = ()
    save_s: float | None = None
    roles: tuple[RoleShape, ...] = ()

    def speed(self, num_shares: int, num_slots: int) -> float:
        """How fast it goes on so many shares or slots; 1 at full size."""
        if self.speeds:
            return self.speeds[min(num_shares, len(self.speeds)) - 1]
        return max(num_slots, 1) / self.num_slots

    @property
    def num_slots(self) -> int:
        """Slots of the gang at full size."""
        return self.shape.num_slots + sum(role.num_slots for role in self.roles)

    def waiting(self) -> QueuedJob:
        """The job as it enters the queue for the first time."""
        return QueuedJob(
            self.num,
            self.shape,
            self.priority,
            int(self.submit_s * US),
            pools=self.pools,
            project=self.project,
            kind=self.kind,
            max_duration_s=self.limit_s,
            min_nodes=self.min_nodes,
            sensitivity=self.sensitivity,
            required=self.required,
            speeds=self.speeds,
            roles=self.roles,
        )


def gang_of(num_slots: int, node_size: int) -> GangShape:
    """Equal shares on as few nodes as possible: 12 slots on nodes of 8 are 2 × 6, never 8 + 4."""
    nodes = -(-num_slots // node_size)
    while num_slots % nodes or num_slots // nodes > node_size:
        nodes += 1
    per_node = num_slots // nodes
    return GangShape(nodes, per_node, per_node)
