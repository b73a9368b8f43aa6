"""The planner's indexes, kept from one pass to the next and brought up to date by what has changed.

A pass over thousands of queued jobs must not begin with indexing all of them. The result always equals an
index built anew from the same snapshot.
"""

from __future__ import annotations

from phalanx.core.scheduling import ClusterIndex, PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.index.cluster_index import class_key


def sync(cluster: ClusterIndex | None, snapshot: PlanningInput) -> ClusterIndex:
    """Return the index of this snapshot: the given one with the differences applied, or a new one."""
    same = (
        cluster is not None
        and cluster.index.nodes == snapshot.nodes
        and cluster.config == snapshot.config
        and cluster.history is snapshot.history
    )
    if cluster is None or not same:
        return ClusterIndex.of(snapshot)
    cluster.projects = {project.name: project for project in snapshot.projects}
    cluster.users = snapshot.users
    _sync_held(cluster, {held.job: held for held in snapshot.held})
    waiting = {job.num: job for job in snapshot.waiting}
    for num in [num for num in cluster.waiting if num not in waiting]:
        cluster.withdraw(num)
    for num, job in waiting.items():
        known = cluster.submitted(num)
        if known is job:
            continue
        if known is not None and known != job:
            cluster.withdraw(num)
        cluster.submit(job)
    cluster.reservations = {reservation.job: reservation for reservation in snapshot.reservations}
    return cluster


def only_longer_classes(
    cluster: ClusterIndex, snapshot: PlanningInput, started: frozenset[int]
) -> bool:
    """Return whether the snapshot is that of the last pass, with its starts done and more jobs queued.

    `started` are the starts of the last pass. The further jobs stand behind others that cannot start.
    """
    same = (
        cluster.index.nodes == snapshot.nodes
        and cluster.config == snapshot.config
        and cluster.history is snapshot.history
        and cluster.reservations
        == {reservation.job: reservation for reservation in snapshot.reservations}
    )
    if not same or not cluster.held.keys() <= (held := {one.job for one in snapshot.held}):
        return False
    waiting = {job.num for job in snapshot.waiting}
    if not started.isdisjoint(waiting):
        return False  # a start was refused
    if not held - cluster.held.keys() <= started or not cluster.waiting.keys() - waiting <= held:
        return False
    return all(
        cluster.submitted(job.num) is job or _stands_behind(cluster, job, started)
        for job in snapshot.waiting
    )


def _stands_behind(cluster: ClusterIndex, job: QueuedJob, started: frozenset[int]) -> bool:
    line = cluster.classes.get(class_key(job.as_of(cluster.now)))
    if job.num in cluster.waiting or job.not_before is not None or line is None:
        return False
    return any(num not in started for _, num in line.jobs)


def _sync_held(cluster: ClusterIndex, held: dict[int, RunningJob]) -> None:
    for num in [num for num in cluster.held if num not in held]:
        cluster.release(num)
    for num, one in held.items():
        known = cluster.held.get(num)
        if known == one:
            continue
        if known is not None and _alike(known, one):
            cluster.update(one)
            continue
        cluster.release(num)
        cluster.hold(one)


def _alike(before: RunningJob, after: RunningJob) -> bool:
    """Whether the indexes hold the same for both: then only facts have changed."""
    return (
        before.placement == after.placement
        and before.project == after.project
        and before.priority == after.priority
        and before.preemptible == after.preemptible
        and before.cpus_per_node == after.cpus_per_node
        and before.memory_per_node_bytes == after.memory_per_node_bytes
        and before.roles == after.roles
        and before.user == after.user
        and (before.min_nodes, before.max_nodes) == (after.min_nodes, after.max_nodes)
    )
