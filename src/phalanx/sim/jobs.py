"""Jobs of a trace: submission time, shape, and run time alone on the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.scheduling import QueuedJob

US = 1_000_000


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    Without `preferred` and `patience_s` the planner decides them as for a spec; its peers prefer no
    level.
    """

    num: int  # job number
    submit_s: float  # submission, seconds of virtual time
    duration_s: float  # run time on a good placement at full size, without start-up
    shape: GangShape  # the gang's first part at full size
    project: str = ""  # project that its slots count for
    kind: str = ""  # key of the learned durations
    label: str = ""  # for reports only
    priority: int = 50  # higher goes first
    sensitivity: float = 0.0  # relative slow-down on a scattered placement
    min_nodes: int | None = None  # least size of an elastic job
    limit_s: float | None = None  # declared limit of the run time
    checkpoint_s: float = 1800.0  # interval of its own saves; 0: none
    required: str | None = None  # topology level that must hold the whole gang
    preferred: str | None = None  # topology level that it insists on at first
    patience_s: float | None = None  # time in the queue for which it insists on `preferred`
    pools: tuple[str, ...] = ()  # in order of preference; empty: any pool
    speeds: tuple[float, ...] = ()  # relative speed on 1, 2… shares; empty: proportional to slots
    save_s: float | None = None  # time of a requested save; None: that of `Costs`
    roles: tuple[RoleShape, ...] = ()  # further parts of the gang
    user: str = ""  # user that its slots count for

    def speed(self, num_shares: int, num_slots: int) -> float:
        """Return the relative speed on so many shares or slots; 1 at full size."""
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
            user=self.user,
            kind=self.kind,
            max_duration_s=self.limit_s,
            min_nodes=self.min_nodes,
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


def fewest_nodes(num_slots: int, node_size: int) -> GangShape:
    """Equal shares on the fewest nodes, rounded up: 13 slots on nodes of 8 are 2 × 7."""
    nodes = -(-num_slots // node_size)
    per_node = -(-num_slots // nodes)
    return GangShape(nodes, per_node, per_node)
