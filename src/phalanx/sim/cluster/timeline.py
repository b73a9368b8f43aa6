"""Samples of a simulated cluster over time, for plots and for rates over a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from phalanx.core.scheduling import ClusterIndex


@dataclass(frozen=True, slots=True)
class Sample:
    """The state before a pass. `useful_slot_s` counts from the start of the simulation."""

    at_s: float
    num_slots: int
    held_slots: int
    queued_slots: int
    whole_slots: int
    useful_slot_s: float

    @property
    def free_slots(self) -> int:
        """Return the open slots that no job holds."""
        return self.num_slots - self.held_slots

    @property
    def fragmented(self) -> float:
        """The part of the free slots that lies on broken nodes, 0 to 1."""
        return 1.0 - self.whole_slots / self.free_slots if self.free_slots > 0 else 0.0


@dataclass(slots=True)
class Timeline:
    """Samples at most every `every_s` seconds; 0 takes none."""

    every_s: float = 3600.0
    samples: list[Sample] = field(default_factory=list)

    def is_due(self, now_s: float) -> bool:
        """Whether the next sample should be taken."""
        if self.every_s <= 0:
            return False
        return not self.samples or now_s - self.samples[-1].at_s >= self.every_s

    def note(self, now_s: float, cluster: ClusterIndex, useful_slot_s: float) -> None:
        """Take a sample."""
        groups = cluster.index.groups
        total = sum(group.num_nodes * group.size for group in groups)
        free = sum(group.num_free for group in groups)
        self.samples.append(
            Sample(
                now_s,
                total,
                total - free,
                sum(cluster.demand.values()),
                sum(len(group.by_free[group.size]) * group.size for group in groups),
                useful_slot_s,
            )
        )

    def useful_between(self, start_s: float, end_s: float) -> float:
        """Useful slot time as a part of capacity within a window; 0 without two samples in it."""
        inside = [one for one in self.samples if start_s <= one.at_s <= end_s]
        if len(inside) < 2:
            return 0.0
        capacity = sum(a.num_slots * (b.at_s - a.at_s) for a, b in pairwise(inside))
        return (inside[-1].useful_slot_s - inside[0].useful_slot_s) / max(capacity, 1.0)
