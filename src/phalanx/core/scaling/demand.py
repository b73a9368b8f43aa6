"""The gangs that would start if pools had more nodes: a plan on the cluster as it could become.

The planner itself is asked. So its order, quotas, entitlements and topology hold, a gang is wanted as a
whole or not at all, and nothing is wanted for a job that something else than nodes keeps waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import Node, Placement, RoleShape
from phalanx.core.scaling.model import NodeWish, PoolWants, WantedGang
from phalanx.core.scheduling import PlanningInput, QueuedJob, plan


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """The demand for nodes by pool, and the jobs that need none: they would start on present nodes."""

    pools: Mapping[str, PoolWants]
    fit_now: frozenset[int] = frozenset()

    def of(self, pool: str) -> PoolWants:
        """The demand for one pool."""
        return self.pools.get(pool, PoolWants())


def demand_for(
    snapshot: PlanningInput,
    offers: Mapping[str, int],
    now: int,
    *,
    joining: frozenset[str] = frozenset(),
    leave_out: frozenset[int] = frozenset(),
) -> NodeDemand:
    """What would start if each pool of `offers` had so many more nodes.

    `joining` are present nodes on which nothing may start yet: they count as new. Jobs of `leave_out` are
    not considered.
    """
    nodes = tuple(_offered(snapshot.nodes, offers, joining))
    there = {node.id: node for node in nodes}
    waiting = tuple(job for job in snapshot.waiting if job.num not in leave_out)
    if not waiting or not any(_is_new(node, joining) for node in nodes):
        return NodeDemand({})
    jobs = {job.num: job for job in waiting}
    found: dict[str, list[tuple[QueuedJob, Placement]]] = {}
    fit_now = set()
    for start in plan(replace(snapshot, nodes=nodes, waiting=waiting), now).starts:
        if any(_is_new(there[share.node], joining) for share in start.placement.shares):
            found.setdefault(start.placement.pool, []).append((jobs[start.job], start.placement))
        else:
            fit_now.add(start.job)
    pools = {pool: _wants(gangs, there, joining) for pool, gangs in found.items()}
    return NodeDemand(pools, frozenset(fit_now))


def _is_new(node: Node, joining: frozenset[str]) -> bool:
    return node.future or node.id in joining


def _offered(
    nodes: Iterable[Node], offers: Mapping[str, int], joining: frozenset[str]
) -> Iterable[Node]:
    """The present nodes, those that join as if they were ready, and as many new ones as are offered."""
    nodes = tuple(nodes)
    left = dict(offers)
    sizes = {node.pool: node.num_slots for node in nodes if node.future}
    for node in nodes:
        if node.id in joining:
            # Its devices may not be reported yet.
            yield replace(node, closed="", num_slots=max(node.num_slots, sizes.get(node.pool, 1)))
        elif not node.future:
            yield node
        elif left.get(node.pool, 0) > 0:
            left[node.pool] -= 1
            yield replace(node, closed="")


def _wants(
    gangs: Iterable[tuple[QueuedJob, Placement]],
    there: Mapping[str, Node],
    joining: frozenset[str],
) -> PoolWants:
    wanted, new, needed = [], set(), set()
    for job, placement in gangs:
        names = {share.node for share in placement.shares}
        fresh = {name for name in names if _is_new(there[name], joining)}
        new |= {name for name in fresh if there[name].future}
        needed |= {name for name in names if not there[name].future}
        # A request cannot say that parts of the gang are to be in domains of their own.
        one = job.domains == 1 and job.required not in (None, "node", "pool")
        together = job.required if one else ""
        wanted.append(WantedGang(job.num, _wishes(job, placement), len(fresh), together or ""))
    return PoolWants(tuple(wanted), len(new), frozenset(needed))


def _wishes(job: QueuedJob, placement: Placement) -> tuple[NodeWish, ...]:
    """What each share of a gang requests: those of the first part, then role after role."""
    roles = [role for role in job.roles for _ in range(role.nodes)]
    first = len(placement.shares) - len(roles)
    wishes = []
    for number, share in enumerate(placement.shares):
        cpus, memory = job.cpus_per_node, job.memory_per_node_bytes
        role = roles[number - first] if number >= first else None
        if isinstance(role, RoleShape):
            cpus, memory = role.cpus_per_node, role.memory_per_node_bytes
        wishes.append(NodeWish(len(share.slots), cpus, memory))
    return tuple(wishes)
