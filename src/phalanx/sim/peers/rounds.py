"""Time-sharing schedulers: in turn, or the job furthest behind its share first.

A round (a lease, a quantum) protects jobs that have just started. In the papers a suspension is
nearly free; here it costs a save and a restart as for all policies, so Gandiva's quantum is half an
hour and not a minute. No trace here has speeds by slot type: Gavel's program over one type has a
closed-form solution, the water level that fills the cluster.
"""

from __future__ import annotations

from phalanx.core.scheduling.model.planning_input import US
from phalanx.sim.peers.preemptive import Active, Key, Preemptive, Scene, by

_QUANTUM_S = 1800.0
_LEASE_S = 1200.0
_ROUND_S = 360.0


def turn_key(quantum_s: float) -> Key:
    """Gandiva: in turn. A job that has had a quantum queues again, behind waiting jobs."""

    def key(active: Active, scene: Scene) -> float:
        if active.waiting is not None:
            return float(active.waiting.since)
        started = 0 if active.held is None else active.held.started_at or 0
        return started + quantum_s * US

    return key


def lateness_key(active: Active, scene: Scene) -> float:
    """Themis: the worst ratio of the finish time expected here to that in a cluster alone first.

    The number of sharing jobs is equal for all at one moment and left out. True durations are used
    where the paper lets jobs report theirs.
    """
    left_s = scene.oracle.remaining_s(active.num)
    had_s = active.attained_slot_s / max(active.slots, 1)
    in_all_s = (scene.now - active.submitted_at) / US + left_s
    return -in_all_s / max(had_s + left_s, 1.0)


def max_min(scene: Scene) -> list[Active]:
    """Gavel with max-min fairness: target share of time over the share had, the highest first."""
    capacity = sum(node.num_slots for node in scene.cluster.index.nodes if not node.closed)
    level = water_level([active.slots for active in scene.jobs], capacity)

    def key(active: Active, _: Scene) -> float:
        target = min(1.0, level / active.slots)
        here_s = max((scene.now - active.submitted_at) / US, 1.0)
        had = active.attained_slot_s / active.slots / here_s
        return -target / max(had, 1e-6)

    return by(key)(scene)


def water_level(sizes: list[int], capacity: int) -> float:
    """Return the cap on the slots of each job with which all together fill `capacity`."""
    left, num = float(capacity), len(sizes)
    for size in sorted(sizes):
        if size * num >= left:
            return left / num
        left -= size
        num -= 1
    return float(max(sizes, default=0))


def gandiva_like(quantum_s: float = _QUANTUM_S) -> Preemptive:
    """Time slices in turn."""
    return Preemptive("gandiva-like", by(turn_key(quantum_s)), quantum_s)


def themis_like(lease_s: float = _LEASE_S) -> Preemptive:
    """Worst finish-time ratio first, with leases."""
    return Preemptive("themis-like", by(lateness_key), lease_s)


def gavel_max_min(round_s: float = _ROUND_S) -> Preemptive:
    """Max-min shares of time in rounds."""
    return Preemptive("gavel-max-min", max_min, round_s)
