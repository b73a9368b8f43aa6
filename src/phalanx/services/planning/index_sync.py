"""The planner's indexes, kept from one pass to the next and brought up to date by what has changed.

A pass over thousands of queued jobs must not begin with building the picture of all of them. The result
always equals a world built anew from the same snapshot.
"""

from __future__ import annotations

from phalanx.core.scheduling import Held, Snapshot, Waiting, World
from phalanx.core.scheduling.index.cluster_index import line_key


def follow(world: World | None, snapshot: Snapshot) -> World:
    """The world of this snapshot: the given one with the differences applied, or a new one."""
    same = (
        world is not None
        and world.index.nodes == snapshot.nodes
        and world.terms == snapshot.terms
        and world.history is snapshot.history
    )
    if world is None or not same:
        return World.of(snapshot)
    world.projects = {project.name: project for project in snapshot.projects}
    _follow_held(world, {held.job: held for held in snapshot.held})
    waiting = {job.num: job for job in snapshot.waiting}
    for num in [num for num in world.waiting if num not in waiting]:
        world.withdraw(num)
    for num, job in waiting.items():
        known = world.waiting.get(num)
        if known is job:
            continue
        if known is not None and known != job:
            world.withdraw(num)
        world.submit(job)
    world.holes = {hole.job: hole for hole in snapshot.holes}
    return world


def only_longer_lines(world: World, snapshot: Snapshot, started: frozenset[int]) -> bool:
    """Whether the snapshot is the world of the last pass, whose starts were `started`, with those
    starts done and more jobs behind others that already waited in vain."""
    same = (
        world.index.nodes == snapshot.nodes
        and world.terms == snapshot.terms
        and world.history is snapshot.history
        and world.holes == {hole.job: hole for hole in snapshot.holes}
    )
    if not same or not world.held.keys() <= (held := {one.job for one in snapshot.held}):
        return False
    waiting = {job.num for job in snapshot.waiting}
    if not started.isdisjoint(waiting):
        return False  # a start was refused
    if not held - world.held.keys() <= started or not world.waiting.keys() - waiting <= held:
        return False
    return all(
        world.waiting.get(job.num) is job or _stands_behind(world, job, started)
        for job in snapshot.waiting
    )


def _stands_behind(world: World, job: Waiting, started: frozenset[int]) -> bool:
    line = world.lines.get(line_key(job))
    if job.num in world.waiting or job.not_before is not None or line is None:
        return False
    return any(num not in started for _, num in line.jobs)


def _follow_held(world: World, held: dict[int, Held]) -> None:
    for num in [num for num in world.held if num not in held]:
        world.release(num)
    for num, one in held.items():
        known = world.held.get(num)
        if known == one:
            continue
        if known is not None and _alike(known, one):
            world.update(one)
            continue
        world.release(num)
        world.hold(one)


def _alike(before: Held, after: Held) -> bool:
    """Whether the indexes hold the same for both: then only facts have changed."""
    return (
        before.placement == after.placement
        and before.project == after.project
        and before.priority == after.priority
        and before.preemptible == after.preemptible
        and before.cpus_per_node == after.cpus_per_node
        and before.memory_per_node_bytes == after.memory_per_node_bytes
        and before.roles == after.roles
        and (before.min_nodes, before.max_nodes) == (after.min_nodes, after.max_nodes)
    )
