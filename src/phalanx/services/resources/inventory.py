"""What there is and who has it: pools, nodes and projects as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.gang.placement import Node
from phalanx.core.scheduling.stages.entitlement import entitlements, rolled_up
from phalanx.errors import NotFound
from phalanx.kit.nearest import nearest
from phalanx.schemas.api import jobs as api
from phalanx.schemas.api.estate import ProjectView
from phalanx.schemas.api.jobs import at_of, at_or_none
from phalanx.schemas.pools.projects import ProjectSpec
from phalanx.services.planning.planner_input import past_slots
from phalanx.services.platform import Platform
from phalanx.store import estate, planning
from phalanx.store.database import Tx
from phalanx.store.estate import Applied, NodeMark
from phalanx.store.jobs import StoredJob


@dataclass(frozen=True, slots=True)
class _Found:
    """One consistent look at everything that is shown."""

    nodes: tuple[Node, ...]
    waiting: list[StoredJob]
    holding: list[StoredJob]
    pools: dict[str, Applied]
    marks: dict[str, NodeMark]
    kept: dict[str, list[int]]


def _look(platform: Platform) -> _Found:
    real = tuple(platform.executor.inventory())

    def work(tx: Tx) -> _Found:
        waiting, holding = platform.picture.jobs(tx)
        kept: dict[str, list[int]] = {}
        for owner, one in planning.holes_now(tx).items():
            for name in dict.fromkeys(one.hole.nodes):
                kept.setdefault(name, []).append(owner)
        return _Found(
            nodes=platform.picture.nodes(tx, real),
            waiting=waiting,
            holding=holding,
            pools={one.name: one for one in estate.pools_now(tx)},
            marks=estate.marks(tx),
            kept=kept,
        )

    return platform.store.view(work)


# -- pools and nodes -----------------------------------------------------------------------------


def list_pools(platform: Platform) -> list[api.PoolView]:
    """Pools with what is free in them. Raises ExecutorUnavailable."""
    found = _look(platform)
    views = _nodes(found)
    names = list(dict.fromkeys(node.pool for node in found.nodes))
    return [_pool(found, name, [one for one in views if one.pool == name]) for name in names]


def show_pool(platform: Platform, name: str) -> api.PoolView:
    """One pool with its part of the pool file. Raises NotFound, ExecutorUnavailable."""
    found = _look(platform)
    views = [one for one in _nodes(found) if one.pool == name]
    if not views:
        names = sorted({node.pool for node in found.nodes})
        raise NotFound(f"there is no pool {name}", _hint(name, names))
    pool, applied = _pool(found, name, views), found.pools.get(name)
    return pool.model_copy(update={"spec": None if applied is None else dict(applied.body)})


def list_nodes(platform: Platform, pool: str | None = None) -> list[api.NodeView]:
    """Nodes with what is free on them, of one pool or of all. Raises ExecutorUnavailable."""
    return [one for one in _nodes(_look(platform)) if pool in (None, one.pool)]


def show_node(platform: Platform, name: str) -> api.NodeView:
    """One node. Raises NotFound, ExecutorUnavailable."""
    views = {one.id: one for one in list_nodes(platform)}
    if name not in views:
        raise NotFound(f"there is no node {name}", _hint(name, sorted(views)))
    return views[name]


def _hint(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known)
    return f"did you mean {close}?" if close is not None else f"there is {', '.join(known[:10])}"


def _pool(found: _Found, name: str, nodes: Sequence[api.NodeView]) -> api.PoolView:
    applied = found.pools.get(name)
    prices = [node.price for node in nodes if node.price]
    open_to = [one for one in found.waiting if not one.facts.pools or name in one.facts.pools]
    return api.PoolView(
        name=name,
        num_nodes=len(nodes),
        num_slots=sum(node.num_slots for node in nodes),
        num_free=sum(node.num_free for node in nodes if node.state == "open"),
        jobs=sorted({num for node in nodes for num in node.jobs}),
        executor="local" if applied is None else str(applied.body.get("executor", "local")),
        num_closed=sum(1 for node in nodes if node.state != "open"),
        slot_types=sorted({node.slot_type for node in nodes if node.slot_type}),
        levels=list(dict.fromkeys(level for node in nodes for level in node.topology)),
        price=max(prices, default=None),
        spot=any(node.reclaims_per_hour for node in nodes),
        num_waiting=len(open_to),
        applied_at=None if applied is None else at_of(applied.applied_at),
    )


def _nodes(found: _Found) -> list[api.NodeView]:
    held: dict[str, int] = {}
    jobs: dict[str, set[int]] = {}
    for one in found.holding:
        attempt = one.job.attempt
        for share in () if attempt is None else attempt.placement.shares:
            held[share.node] = held.get(share.node, 0) + len(share.slots)
            jobs.setdefault(share.node, set()).add(one.job.num)
    return [
        _node(found, node, held.get(node.id, 0), jobs.get(node.id, set())) for node in found.nodes
    ]


def _node(found: _Found, node: Node, held: int, jobs: set[int]) -> api.NodeView:
    mark = found.marks.get(node.id)
    # Without a mark it is its own cluster that closes it: it drains it, or cannot reach it.
    state, reason = ("closed", node.closed) if node.closed else ("open", "")
    if mark is not None:
        state, reason = mark.state, mark.reason
    return api.NodeView(
        id=node.id,
        pool=node.pool,
        address=node.address,
        num_slots=node.num_slots,
        num_free=node.num_slots - held,
        num_cpus=node.num_cpus,
        memory_bytes=node.memory_bytes,
        jobs=sorted(jobs),
        state=state,
        reason=reason,
        topology=dict(node.domains),
        labels=dict(node.labels),
        taints=list(node.taints),
        slot_type=node.slot_type,
        device_memory_bytes=node.device_memory_bytes,
        interconnect=node.interconnect,
        bandwidth_gbps=node.bandwidth_gbps,
        price=node.price_per_slot_hour,
        reclaims_per_hour=node.hazard_per_hour,
        kept_for=sorted(found.kept.get(node.id, [])),
    )


# -- projects ------------------------------------------------------------------------------------


def list_projects(platform: Platform, now: int) -> list[ProjectView]:
    """Projects with limits, and those that live jobs name. Raises ExecutorUnavailable."""
    num_slots = sum(node.num_slots for node in platform.cluster() if not node.closed)

    def work(tx: Tx) -> list[ProjectView]:
        applied = {one.name: one for one in estate.projects_now(tx)}
        usage = planning.usage_now(tx)
        waiting, holding = platform.picture.jobs(tx)
        counted = _count(waiting, holding)
        specs = {name: ProjectSpec(**one.body) for name, one in applied.items()}
        half_life_s = platform.policy.half_life_s
        tree = {name: spec.to_core() for name, spec in specs.items()}
        below = rolled_up(tree, {name: one.held for name, one in counted.items()})
        entitled = entitlements(
            tree,
            {name: one.held + one.waiting_slots for name, one in counted.items()},
            num_slots,
        )
        return [
            _project(
                name,
                specs.get(name),
                counted.get(name, _Count()),
                entitled.get(name),
                past_slots(usage.get(name), half_life_s, now),
                applied[name].applied_at if name in applied else None,
            ).model_copy(update={"parts_slots": below.get(name, 0) - _held(counted, name)})
            for name in sorted({*applied, *counted})
        ]

    return platform.store.view(work)


def show_project(platform: Platform, name: str, now: int) -> ProjectView:
    """One project with its part of the project file. Raises NotFound, ExecutorUnavailable."""
    views = {one.name: one for one in list_projects(platform, now)}
    if name not in views:
        raise NotFound(f"there is no project {name}", _hint(name, sorted(views)))
    applied = platform.store.view(estate.projects_now)
    spec = next((dict(one.body) for one in applied if one.name == name), None)
    return views[name].model_copy(update={"spec": spec})


@dataclass(slots=True)
class _Count:
    held: int = 0
    running: int = 0
    waiting: int = 0
    waiting_slots: int = 0


def _count(waiting: Sequence[StoredJob], holding: Sequence[StoredJob]) -> Mapping[str, _Count]:
    counted: dict[str, _Count] = {}
    for one in waiting:
        count = counted.setdefault(one.facts.project, _Count())
        count.waiting += 1
        count.waiting_slots += one.job.terms.num_slots
    for one in holding:
        count = counted.setdefault(one.facts.project, _Count())
        count.running += 1
        count.held += 0 if one.job.attempt is None else one.job.attempt.num_slots
    return counted


def _held(counted: Mapping[str, _Count], name: str) -> int:
    return counted[name].held if name in counted else 0


def _project(
    name: str,
    spec: ProjectSpec | None,
    count: _Count,
    entitled: float | None,
    average: float,
    applied_at: int | None,
) -> ProjectView:
    limits = ProjectSpec(name=name) if spec is None else spec
    return ProjectView(
        name=name,
        parent=limits.parent,
        guaranteed_slots=limits.guaranteed_slots,
        weight=limits.weight,
        max_slots=limits.quota,
        lend_slots=limits.lend_slots,
        max_priority=limits.max_priority,
        max_running=limits.max_running,
        held_slots=count.held,
        num_running=count.running,
        num_waiting=count.waiting,
        waiting_slots=count.waiting_slots,
        entitled_slots=None if entitled is None else round(entitled, 3),
        average_slots=round(average, 3),
        applied_at=at_or_none(applied_at),
    )
