"""Pools and node marks: apply a pool file, remove a pool, drain and undrain a node.

A pool file never cuts off a running job: changes that would are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phalanx.core.gang.devices import shared_out
from phalanx.core.gang.placement import Node
from phalanx.core.jobs.events import StopRequested
from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import Conflict, NotFound, Problem, SpecInvalid
from phalanx.executors.protocol import LeftoverCleaner
from phalanx.kit.text import job_label
from phalanx.schemas.api.pools import (
    ApplyResponse,
    DrainRequest,
    DrainResponse,
    ForgetPoolResponse,
    LeftoversView,
)
from phalanx.schemas.pools.pool_file import (
    EXECUTORS,
    HostDefaults,
    PoolFile,
    PoolSpec,
    current_form,
    read_pools,
)
from phalanx.services.caches.row_cache import LOCAL
from phalanx.services.lifecycle.commit import QUEUE, commit_events
from phalanx.services.platform import Platform
from phalanx.services.resources.bounds import bounded_policies
from phalanx.services.resources.inventory import change_views, suggestion
from phalanx.services.resources.stores import tell_outside
from phalanx.store import planning, resources
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.resources import Applied, NodeMark
from phalanx.store.tenancy import audit


def apply_pools(platform: Platform, file: Mapping[str, Any], now: int, actor: str) -> ApplyResponse:
    """Add or replace the pools of a file. The pools of this machine are applied all or none.

    The warnings name running jobs that are outside their residency now, which get an event. Raises
    SpecInvalid with every problem, Conflict where a job runs on a node that would go, and ServerError for
    a cluster that cannot be connected.
    """
    current, notices = current_form(file)
    found = read_pools(current, EXECUTORS)
    connected = [platform.clusters.connect(pool) for pool in found.clusters]
    done = _apply_local(platform, found, now, actor) if found.pools else ApplyResponse(changes=[])
    return ApplyResponse(
        changes=[*(one.change for one in connected), *done.changes],
        warnings=[
            *notices,
            *_preceding_bounds(platform, [pool.name for pool in found.clusters]),
            *(one.warning for one in connected if one.warning),
            *done.warnings,
            *tell_outside(platform, now, actor),
        ],
    )


def _preceding_bounds(platform: Platform, names: Iterable[str]) -> list[str]:
    """Warnings about bounds that were set by command and differ from those of the file."""
    known = bounded_policies(platform)
    return [
        f"pool {name} keeps the bounds that were set: {known[name].policy.bounds_in_words}; "
        f"`phalanx pools scale {name} --reset` returns to those of the file"
        for name in names
        if name in known and known[name].bounds is not None
    ]


def _apply_local(platform: Platform, found: PoolFile, now: int, actor: str) -> ApplyResponse:
    machine = _machine(platform)

    def work(tx: Tx) -> ApplyResponse:
        before = {one.name: PoolSpec(**one.body) for one in resources.pools.now(tx)}
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        fresh = {pool.name: pool for pool in found.pools}
        _refuse_shared_nodes(fresh, before)
        _refuse_cutting_off(fresh, before, holding)
        changed = [pool for pool in found.pools if before.get(pool.name) != pool]
        # Caches compare pools by this stamp, so it always increases.
        stamp = max([now, *(at + 1 for _, at in resources.pools.stamps(tx))])
        resources.pools.put(
            tx, [Applied(pool.name, pool.model_dump(mode="json"), stamp, actor) for pool in changed]
        )
        _refuse_moving_devices(tx, machine, holding)
        _remove_stale_marks(tx, {**before, **fresh})
        tx.touched.topics.add(QUEUE)
        return ApplyResponse(changes=change_views([p.name for p in found.pools], before, changed))

    return platform.store.transact(work)


def remove_pool(platform: Platform, name: str) -> None:
    """Remove a pool. Raises NotFound, and Conflict while jobs run in it."""

    if name in platform.clusters.known():
        _refuse_used(name, platform.store.view(platform.scheduler_cache.rows.jobs)[1])
        platform.clusters.forget(name)
        platform.store.transact(lambda tx: planning.put_scaling_bounds(tx, name, None))
        return
    machine = _machine(platform)

    def work(tx: Tx) -> None:
        before = {one.name: PoolSpec(**one.body) for one in resources.pools.now(tx)}
        if name not in before:
            raise NotFound(f"there is no pool {name} from a pool file", suggestion(name, before))
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        _refuse_used(name, holding)
        resources.pools.remove(tx, name)
        _refuse_moving_devices(tx, machine, holding)
        _remove_stale_marks(tx, {key: pool for key, pool in before.items() if key != name})
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)


def leftovers(platform: Platform, name: str) -> list[LeftoversView]:
    """What control planes have left in the cluster of a pool. Raises NotFound, ExecutorUnavailable."""
    _require_cluster(platform, name)
    executor = platform.executor
    found = executor.leftovers(name) if isinstance(executor, LeftoverCleaner) else ()
    return [LeftoversView.of(one) for one in found]


def forget_pool(platform: Platform, name: str, owner: str | None) -> ForgetPoolResponse:
    """Remove the objects of a control plane from the cluster of a pool.

    Without `owner` these are the objects of this one, and the pool is removed as well. Raises NotFound,
    Conflict while jobs run there, and ExecutorUnavailable, after which it may be repeated.
    """
    known = leftovers(platform, name)
    executor = platform.executor
    if owner is None or any(one.is_own and one.owner == owner for one in known):
        _refuse_used(name, platform.store.view(platform.scheduler_cache.rows.jobs)[1])
        removed = 0
        for one in (one for one in known if one.is_own):
            assert isinstance(executor, LeftoverCleaner)
            removed += executor.forget(name, one.owner)
            owner = one.owner
        platform.clusters.forget(name)
        platform.store.transact(lambda tx: planning.put_scaling_bounds(tx, name, None))
        _audit_removal(platform, name, owner or "this control plane", removed)
        return ForgetPoolResponse(owner=owner or "", num_pods=removed, pool_removed=True)
    if owner not in {one.owner for one in known}:
        said = f"no pod in the cluster of pool {name} has the owner {owner}"
        raise NotFound(said, suggestion(owner, [one.owner for one in known]))
    assert isinstance(executor, LeftoverCleaner)
    removed = executor.forget(name, owner)
    _audit_removal(platform, name, owner, removed)
    return ForgetPoolResponse(owner=owner, num_pods=removed, pool_removed=False)


def _audit_removal(platform: Platform, pool: str, owner: str, num_pods: int) -> None:
    what = f"objects of {owner} in the cluster of pool {pool}"
    platform.store.transact(lambda tx: audit.describe(tx, what, {"pods": num_pods}, None))


def _require_cluster(platform: Platform, name: str) -> None:
    names = list(platform.clusters.known())
    if name not in names:
        raise NotFound(f"no cluster is connected as pool {name}", suggestion(name, names))


def _refuse_used(name: str, holding: Iterable[StoredJob]) -> None:
    jobs = [one for one in holding if _pool_of(one) == name]
    if jobs:
        raise Conflict(
            f"{', '.join(job_label(one.job.num) for one in jobs)} still run in pool {name}",
            "wait for them, or stop them: `phalanx stop JOB`",
        )


def _refuse_shared_nodes(fresh: Mapping[str, PoolSpec], before: Mapping[str, PoolSpec]) -> None:
    owner = {
        name: pool.name
        for pool in before.values()
        if pool.name not in fresh
        for entry in pool.nodes
        for name in entry.names
    }
    problems = [
        Problem(f"pool {pool.name}", f"node {name} belongs to pool {owner[name]} already")
        for pool in fresh.values()
        for entry in pool.nodes
        for name in entry.names
        if name in owner
    ]
    if problems:
        raise SpecInvalid(problems)


def _refuse_cutting_off(
    fresh: Mapping[str, PoolSpec], before: Mapping[str, PoolSpec], holding: Sequence[StoredJob]
) -> None:
    """Raise Conflict where a node would lose slots that a running job holds."""
    slots = {node.id: node.num_slots for p in fresh.values() for node in p.to_core(HostDefaults())}
    problems = []
    for one in holding:
        attempt = one.job.attempt
        if attempt is None or attempt.placement.pool not in fresh.keys() & before.keys():
            continue
        for share in attempt.placement.shares:
            if max(share.slots, default=-1) >= slots.get(share.node, 0):
                text = f"{job_label(one.job.num)} runs on node {share.node}, which would lose slots"
                problems.append(Problem(f"pool {attempt.placement.pool}", text))
    if problems:
        raise Conflict(
            "\n".join(dict.fromkeys(str(one) for one in problems)),
            "drain the node first: `phalanx nodes drain NODE --move`",
        )


def _machine(platform: Platform) -> list[Node]:
    """The nodes of this machine itself, with its accelerators."""
    return [node for node in platform.inventory() if node.pool == LOCAL]


def _refuse_moving_devices(tx: Tx, machine: Sequence[Node], holding: Sequence[StoredJob]) -> None:
    """Raise Conflict where the pools would give a running job's accelerator to other slots."""
    pools = [PoolSpec(**one.body) for one in resources.pools.now(tx)]
    nodes = shared_out([node for pool in pools for node in pool.to_core(HostDefaults())], machine)
    behind = {
        one: (node.id, slot)
        for node in (nodes if pools else machine)
        for slot, one in enumerate(node.devices)
    }
    problems = [
        f"{job_label(one.job.num)} uses accelerator {device}, which would become slot {slot} of {node}"
        for one in holding
        if one.job.attempt is not None
        for share in one.job.attempt.placement.shares
        for held, device in zip(share.slots, share.devices, strict=False)
        for node, slot in [behind.get(device, (share.node, held))]
        if (node, slot) != (share.node, held)
    ]
    if problems:
        raise Conflict(
            "\n".join(problems), "wait for these jobs, or pause them: `phalanx pause JOB`"
        )


def _remove_stale_marks(tx: Tx, pools: Mapping[str, PoolSpec]) -> None:
    """Remove the marks of nodes that are in no pool; without pools nothing is removed."""
    known = {name for pool in pools.values() for entry in pool.nodes for name in entry.names}
    for node in resources.marks(tx):
        if pools and node not in known:
            resources.unmark_node(tx, node)


def _pool_of(stored: StoredJob) -> str | None:
    return None if stored.job.attempt is None else stored.job.attempt.placement.pool


# -- nodes ---------------------------------------------------------------------------------------


def drain(
    platform: Platform, node: str, request: DrainRequest, now: int, actor: str
) -> DrainResponse:
    """Keep new jobs from starting on a node. Raises NotFound, ExecutorUnavailable."""
    known = [one.id for one in platform.cluster()]
    if node not in known:
        raise NotFound(f"there is no node {node}", suggestion(node, known))
    reason = request.reason or f"by {actor}"

    def work(tx: Tx) -> DrainResponse:
        resources.mark_node(tx, NodeMark(node, request.state, reason, now, actor))
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        here = [one for one in holding if node in _nodes_of(one)]
        moving = []
        if request.jobs == "move":
            text = f"node {node} is {request.state}: {reason}"
            event = StopRequested(StopGoal.REQUEUE, Reason(ReasonCode.NODE_DRAINED, text))
            for one in here:
                if one.job.state is not JobState.STOPPING:
                    commit_events(tx, one.job.num, [event], now, actor)
                moving.append(one.job.num)
        tx.touched.topics.add(QUEUE)
        return DrainResponse(
            node=node,
            state=request.state,
            moving=moving,
            staying=[one.job.num for one in here if one.job.num not in moving],
        )

    return platform.store.transact(work)


def undrain(platform: Platform, node: str) -> None:
    """Allow jobs to start on a node again; may be repeated. Raises NotFound."""
    known = [one.id for one in platform.cluster()]

    def work(tx: Tx) -> None:
        if node not in known and node not in resources.marks(tx):
            raise NotFound(f"there is no node {node}", suggestion(node, known))
        resources.unmark_node(tx, node)
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)


def _nodes_of(stored: StoredJob) -> set[str]:
    attempt = stored.job.attempt
    return set() if attempt is None else {share.node for share in attempt.placement.shares}
