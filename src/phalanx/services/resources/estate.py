"""Pools, nodes and projects: apply, remove, drain. What runs is never cut off by a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from phalanx.core.jobs.events import StopRequested
from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import Conflict, NotFound, Problem, SpecInvalid
from phalanx.kit.ids import job_label
from phalanx.kit.nearest import nearest
from phalanx.schemas.api.estate import ApplyResponse, ChangeView, DrainRequest, DrainResponse
from phalanx.schemas.pools.pools import (
    EXECUTORS,
    Machine,
    PoolFile,
    PoolSpec,
    current_form,
    read_pools,
)
from phalanx.schemas.pools.projects import ProjectSpec, check_tree, read_projects
from phalanx.services.lifecycle.commit import QUEUE, commit_events
from phalanx.services.platform import Platform
from phalanx.store import estate
from phalanx.store.database import Tx
from phalanx.store.estate import Applied, NodeMark
from phalanx.store.jobs import StoredJob

# -- pools ---------------------------------------------------------------------------------------


def apply_pools(platform: Platform, file: Mapping[str, Any], now: int, actor: str) -> ApplyResponse:
    """Add or replace the pools of a file. Those that this machine plays are applied all or none.

    Raises SpecInvalid with every problem, Conflict where a job runs on a node that would go, and
    ServerError for a cluster that this control plane cannot have.
    """
    current, notices = current_form(file)
    found = read_pools(current, EXECUTORS)
    kept = [platform.clusters.keep(pool) for pool in found.clusters]
    done = _apply_local(platform, found, now, actor) if found.pools else ApplyResponse(changes=[])
    return ApplyResponse(
        changes=[*(one.change for one in kept), *done.changes],
        warnings=[*notices, *(one.warning for one in kept if one.warning), *done.warnings],
    )


def _apply_local(platform: Platform, found: PoolFile, now: int, actor: str) -> ApplyResponse:

    def work(tx: Tx) -> ApplyResponse:
        before = {one.name: PoolSpec(**one.body) for one in estate.pools_now(tx)}
        _, holding = platform.picture.jobs(tx)
        fresh = {pool.name: pool for pool in found.pools}
        _refuse_shared_nodes(fresh, before)
        _refuse_cutting_off(fresh, before, holding)
        changed = [pool for pool in found.pools if before.get(pool.name) != pool]
        # Pictures tell pools apart by this stamp, so that it never stands still.
        stamp = max([now, *(at + 1 for _, at in estate.pool_stamps(tx))])
        estate.put_pools(tx, [_applied(pool.name, pool, stamp, actor) for pool in changed])
        _forget_marks(tx, {**before, **fresh})
        tx.touched.topics.add(QUEUE)
        return ApplyResponse(changes=_changes([p.name for p in found.pools], before, changed))

    return platform.store.transact(work)


def remove_pool(platform: Platform, name: str) -> None:
    """Forget a pool. Raises NotFound, and Conflict while jobs run in it."""

    if name in platform.clusters.names():
        _refuse_while_used(platform, name)
        platform.clusters.forget(name)
        return

    def work(tx: Tx) -> None:
        before = {one.name: PoolSpec(**one.body) for one in estate.pools_now(tx)}
        if name not in before:
            raise NotFound(f"no pool file gave a pool {name}", _did_you_mean(name, before))
        _, holding = platform.picture.jobs(tx)
        _refuse_used(name, holding)
        estate.remove_pool(tx, name)
        _forget_marks(tx, {key: pool for key, pool in before.items() if key != name})
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)


def _refuse_while_used(platform: Platform, name: str) -> None:
    _refuse_used(name, platform.store.view(platform.picture.jobs)[1])


def _refuse_used(name: str, holding: Iterable[StoredJob]) -> None:
    jobs = [one for one in holding if _pool_of(one) == name]
    if jobs:
        raise Conflict(
            f"{_labels(jobs)} still run in pool {name}",
            "wait for them, or stop them: `phalanx stop JOB`",
        )


def _applied(name: str, spec: PoolSpec | ProjectSpec, now: int, actor: str) -> Applied:
    return Applied(name, spec.model_dump(mode="json"), now, actor)


def _changes(
    names: Sequence[str], before: Mapping[str, object], changed: Iterable[PoolSpec | ProjectSpec]
) -> list[ChangeView]:
    touched = {one.name for one in changed}

    def outcome(name: str) -> Literal["created", "changed", "unchanged"]:
        if name not in before:
            return "created"
        return "changed" if name in touched else "unchanged"

    return [ChangeView(name=name, outcome=outcome(name)) for name in names]


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
    """A node on which a job holds slots stays in its pool, and as wide as the job needs it."""
    slots = {node.id: node.num_slots for p in fresh.values() for node in p.to_core(Machine())}
    problems = []
    for one in holding:
        attempt = one.job.attempt
        if attempt is None or attempt.placement.pool not in fresh.keys() & before.keys():
            continue
        for share in attempt.placement.shares:
            if max(share.slots, default=-1) >= slots.get(share.node, 0):
                said = f"{job_label(one.job.num)} runs on node {share.node}, which would lose slots"
                problems.append(Problem(f"pool {attempt.placement.pool}", said))
    if problems:
        raise Conflict(
            "\n".join(dict.fromkeys(str(one) for one in problems)),
            "drain the node first: `phalanx nodes drain NODE --move`",
        )


def _forget_marks(tx: Tx, pools: Mapping[str, PoolSpec]) -> None:
    """Marks of nodes that no pool has any more; without pools the machine's own marks stay."""
    known = {name for pool in pools.values() for entry in pool.nodes for name in entry.names}
    for node in estate.marks(tx):
        if pools and node not in known:
            estate.unmark_node(tx, node)


def _pool_of(stored: StoredJob) -> str | None:
    return None if stored.job.attempt is None else stored.job.attempt.placement.pool


def _labels(jobs: Iterable[StoredJob]) -> str:
    return ", ".join(job_label(one.job.num) for one in jobs)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {close}?"
    return f"there is {', '.join(names[:10])}" if names else "there are none"


# -- nodes ---------------------------------------------------------------------------------------


def drain(
    platform: Platform, node: str, request: DrainRequest, now: int, actor: str
) -> DrainResponse:
    """Let nothing start on a node any more. Raises NotFound, ExecutorUnavailable."""
    known = [one.id for one in platform.cluster()]
    if node not in known:
        raise NotFound(f"there is no node {node}", _did_you_mean(node, known))
    reason = request.reason or f"by {actor}"

    def work(tx: Tx) -> DrainResponse:
        estate.mark_node(tx, NodeMark(node, request.state, reason, now, actor))
        _, holding = platform.picture.jobs(tx)
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
    """Let jobs start on a node again; repeating it is no error. Raises NotFound."""
    known = [one.id for one in platform.cluster()]

    def work(tx: Tx) -> None:
        if node not in known and node not in estate.marks(tx):
            raise NotFound(f"there is no node {node}", _did_you_mean(node, known))
        estate.unmark_node(tx, node)
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)


def _nodes_of(stored: StoredJob) -> set[str]:
    attempt = stored.job.attempt
    return set() if attempt is None else {share.node for share in attempt.placement.shares}


# -- projects ------------------------------------------------------------------------------------


def apply_projects(
    platform: Platform, file: Mapping[str, Any], now: int, actor: str
) -> ApplyResponse:
    """Add or replace the projects of a file, all or none. Raises SpecInvalid with every problem."""
    found = read_projects(file)
    num_slots = sum(node.num_slots for node in platform.cluster())

    def work(tx: Tx) -> ApplyResponse:
        before = {one.name: ProjectSpec(**one.body) for one in estate.projects_now(tx)}
        after = {**before, **{project.name: project for project in found.projects}}
        problems = check_tree(after.values())
        if problems:
            raise SpecInvalid(problems)
        changed = [one for one in found.projects if before.get(one.name) != one]
        estate.put_projects(tx, [_applied(one.name, one, now, actor) for one in changed])
        tx.touched.topics.add(QUEUE)
        return ApplyResponse(
            changes=_changes([one.name for one in found.projects], before, changed),
            warnings=_too_generous(after.values(), num_slots),
        )

    return platform.store.transact(work)


def _too_generous(projects: Iterable[ProjectSpec], num_slots: int) -> list[str]:
    promised = sum(one.guaranteed_slots for one in projects if one.parent is None)
    if promised <= num_slots:
        return []
    said = f"{promised} slots are guaranteed, the pools have {num_slots}"
    return [f"{said}: not all guarantees can be kept at the same time"]


def remove_project(platform: Platform, name: str) -> None:
    """Forget a project's limits; its jobs go on. Raises NotFound, Conflict for a parent of others."""

    def work(tx: Tx) -> None:
        before = {one.name: ProjectSpec(**one.body) for one in estate.projects_now(tx)}
        if name not in before:
            raise NotFound(f"no project file gave a project {name}", _did_you_mean(name, before))
        parts = [one.name for one in before.values() if one.parent == name]
        if parts:
            raise Conflict(
                f"project {name} is the parent of {', '.join(parts)}", "remove them first"
            )
        estate.remove_project(tx, name)
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)
