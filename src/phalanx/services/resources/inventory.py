"""Pools and nodes as the API shows them, with what is free and which jobs use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from phalanx.core.gang.devices import Accelerator
from phalanx.core.gang.placement import Node
from phalanx.core.residency import LABEL
from phalanx.errors import NotFound
from phalanx.executors.protocol import DeviceReporter
from phalanx.kit.text import nearest
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.pools import ChangeView, DeviceUserView, DeviceView, NodeView, PoolView
from phalanx.schemas.pools.pool_file import ClusterPool, PoolSpec
from phalanx.schemas.pools.project_file import ProjectSpec
from phalanx.services.platform import Platform
from phalanx.services.resources.bounds import BoundedPolicy, bounded_policies
from phalanx.store import jobs, planning, resources
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.resources import Applied, NodeMark


@dataclass(frozen=True, slots=True)
class _Inventory:
    """Everything the views need, read in one transaction."""

    nodes: tuple[Node, ...]  # present ones
    future: tuple[Node, ...]  # that autoscalers could add
    waiting: list[StoredJob]  # queued jobs
    holding: list[StoredJob]  # jobs that hold slots
    pools: dict[str, Applied]  # from pool files, by name
    marks: dict[str, NodeMark]  # drained and quarantined nodes, by name
    reserved: dict[str, list[int]]  # owners of reservations by node
    devices: dict[str, Accelerator]  # by id
    bounds: dict[str, BoundedPolicy]  # of pools that can grow
    clusters: Mapping[str, ClusterPool]  # with or without nodes


def _read(platform: Platform) -> _Inventory:
    real, bounds = platform.inventory(), bounded_policies(platform)

    def work(tx: Tx) -> _Inventory:
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        reserved: dict[str, list[int]] = {}
        for owner, one in planning.reservations_now(tx).items():
            for name in dict.fromkeys(one.reservation.nodes):
                reserved.setdefault(name, []).append(owner)
        nodes = platform.scheduler_cache.rows.nodes(tx, real)
        return _Inventory(
            nodes=tuple(node for node in nodes if not node.future),
            future=tuple(node for node in nodes if node.future),
            waiting=waiting,
            holding=holding,
            pools={one.name: one for one in resources.pools.now(tx)},
            marks=resources.marks(tx),
            reserved=reserved,
            devices=_devices_of(platform),
            clusters=platform.clusters.known(),
            bounds=bounds,
        )

    return platform.store.view(work)


V = TypeVar("V", PoolView, NodeView)


def only_jobs_of(platform: Platform, projects: Sequence[str] | None, found: Sequence[V]) -> list[V]:
    """The same pools or nodes without the jobs of other projects; `projects` None: with all jobs."""
    if projects is None:
        return list(found)
    nums = sorted({num for one in found for num in _nums_of(one)})
    ours = platform.store.view(lambda tx: jobs.among_projects(tx, nums, projects))
    return [
        one.model_copy(
            update={
                name: [num for num in getattr(one, name) if num in ours]
                for name in _JOB_FIELDS
                if hasattr(one, name)
            }
        )
        for one in found
    ]


_JOB_FIELDS = ("jobs", "reserved_for")


def _nums_of(one: PoolView | NodeView) -> list[int]:
    return [num for name in _JOB_FIELDS for num in getattr(one, name, ())]


def _devices_of(platform: Platform) -> dict[str, Accelerator]:
    executor = platform.executor
    states = executor.devices() if isinstance(executor, DeviceReporter) else ()
    return {state.id: state.device for state in states if state.device is not None}


def list_pools(platform: Platform) -> list[PoolView]:
    """Pools with what is free in them. Raises ExecutorUnavailable."""
    found = _read(platform)
    views = _nodes(found)
    names = dict.fromkeys((*(node.pool for node in (*found.nodes, *found.future)), *found.clusters))
    return [_pool(found, name, [one for one in views if one.pool == name]) for name in names]


def show_pool(platform: Platform, name: str) -> PoolView:
    """One pool with its part of the pool file. Raises NotFound, ExecutorUnavailable."""
    found = _read(platform)
    views = [one for one in _nodes(found) if one.pool == name]
    names = {node.pool for node in (*found.nodes, *found.future)} | found.clusters.keys()
    if name not in names:
        raise NotFound(f"there is no pool {name}", suggestion(name, sorted(names)))
    applied, cluster = found.pools.get(name), found.clusters.get(name)
    spec = None if applied is None else dict(applied.body)
    if cluster is not None:
        spec = cluster.model_dump(mode="json")
    return _pool(found, name, views).model_copy(update={"spec": spec})


def list_nodes(platform: Platform, pool: str | None = None) -> list[NodeView]:
    """Nodes with what is free on them, of one pool or of all. Raises ExecutorUnavailable."""
    return [one for one in _nodes(_read(platform)) if pool in (None, one.pool)]


def show_node(platform: Platform, name: str) -> NodeView:
    """One node. Raises NotFound, ExecutorUnavailable."""
    views = {one.id: one for one in list_nodes(platform)}
    if name not in views:
        raise NotFound(f"there is no node {name}", suggestion(name, sorted(views)))
    return views[name]


def _pool(found: _Inventory, name: str, nodes: Sequence[NodeView]) -> PoolView:
    applied, cluster = found.pools.get(name), found.clusters.get(name)
    prices = [node.price for node in nodes if node.price]
    open_to = [one for one in found.waiting if not one.facts.pools or name in one.facts.pools]
    return PoolView(
        name=name,
        num_nodes=len(nodes),
        num_slots=sum(node.num_slots for node in nodes),
        num_free=sum(node.num_free for node in nodes if node.state == "open"),
        jobs=sorted({num for node in nodes for num in node.jobs}),
        executor="local" if cluster is None else cluster.executor,
        num_closed=sum(1 for node in nodes if node.state != "open"),
        slot_types=sorted({node.slot_type for node in nodes if node.slot_type}),
        levels=list(dict.fromkeys(level for node in nodes for level in node.topology)),
        residency=sorted({node.labels[LABEL] for node in nodes if LABEL in node.labels}),
        price=max(prices, default=None),
        spot=any(node.reclaims_per_hour for node in nodes),
        num_waiting=len(open_to),
        scaling=found.bounds[name].view() if name in found.bounds else None,
        num_future=sum(1 for node in found.future if node.pool == name),
        applied_at=None if applied is None else at_of(applied.applied_at),
    )


def _nodes(found: _Inventory) -> list[NodeView]:
    held: dict[str, dict[int, list[int]]] = {}
    for one in found.holding:
        attempt = one.job.attempt
        for share in () if attempt is None else attempt.placement.shares:
            here = held.setdefault(share.node, {-1: []})
            here[-1].append(one.job.num)  # a share may have no slots
            for slot in share.slots:
                here.setdefault(slot, []).append(one.job.num)
    return [_node(found, node, held.get(node.id, {})) for node in found.nodes]


def _node(found: _Inventory, node: Node, held: Mapping[int, list[int]]) -> NodeView:
    mark = found.marks.get(node.id)
    # A node without a mark is closed by its own cluster, which drains it or cannot reach it.
    state, reason = ("closed", node.closed) if node.closed else ("open", "")
    if mark is not None:
        state, reason = mark.state, mark.reason
    closed = dict(node.closed_slots)
    num_used = len((held.keys() | closed.keys()) - {-1})
    return NodeView.of(
        node,
        num_free=node.num_slots - num_used,
        num_closed_slots=len(closed),
        num_unhealthy=node.num_unhealthy,
        jobs=sorted({num for nums in held.values() for num in nums}),
        state=state,
        reason=reason,
        topology=dict(node.domains),
        labels=dict(node.labels),
        price=node.price_per_slot_hour,
        reclaims_per_hour=node.hazard_per_hour,
        reserved_for=sorted(found.reserved.get(node.id, [])),
        devices=[
            _device(found.devices.get(one), one, slot, closed.get(slot, ""), held.get(slot, []))
            for slot, one in enumerate(node.devices)
        ],
    )


def _device(
    device: Accelerator | None, name: str, slot: int, closed: str, jobs: Sequence[int]
) -> DeviceView:
    view = DeviceView(
        slot=slot,
        id=name,
        state="closed" if closed else "held" if jobs else "free",
        reason=closed,
        jobs=sorted(jobs),
    )
    if device is None:
        return view
    return view.model_copy(
        update={
            "model": device.model,
            "kind": device.kind,
            "memory_bytes": device.memory_bytes,
            "free_bytes": device.free_bytes,
            "link": device.link,
            "users": [DeviceUserView(pid=pid, used_bytes=used) for pid, used in device.users],
        }
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest known one, or the first ten."""
    names = sorted(known)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {close}?"
    return f"known: {', '.join(names[:10] or ['none'])}"


def change_views(
    names: Sequence[str], before: Mapping[str, object], changed: Iterable[PoolSpec | ProjectSpec]
) -> list[ChangeView]:
    """What applying a file did to each named pool or project."""
    touched = {one.name for one in changed}

    def outcome(name: str) -> Literal["created", "changed", "unchanged"]:
        done: Literal["changed", "unchanged"] = "changed" if name in touched else "unchanged"
        return done if name in before else "created"

    return [ChangeView(name=name, outcome=outcome(name)) for name in names]
