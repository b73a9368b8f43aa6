"""The entitlement stage: what each project may count on, and what it uses with its parts."""

from __future__ import annotations

from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.entitlement import lineage, project_shares, rolled_up
from phalanx.core.scheduling.model.quotas import NarrowLimits
from phalanx.core.scheduling.search.narrow_ledger import NarrowLedger
from phalanx.core.scheduling.stages.scheduling_pass import Pass


def entitle(state: Pass) -> None:
    """Set the shares of the projects and their use, the use of their parts included."""
    cluster, ledger = state.cluster, state.ledger
    capacity = sum(group.num_nodes * group.size for group in cluster.index.groups)
    ledger.used = rolled_up(cluster.projects, cluster.used)
    demand = cluster.demand
    if any(one.max_running is not None for one in cluster.projects.values()):
        ledger.num_jobs = _num_jobs(cluster)
        demand = _demand_within_limits(cluster, ledger.num_jobs)
    ledger.shares = project_shares(cluster.projects, cluster.used, demand, capacity)
    limits = NarrowLimits.of(cluster.projects, cluster.users)
    if limits is not None:
        ledger.narrow = NarrowLedger(limits, cluster, state.now)
        ledger.narrow.count_held()
    for num in cluster.stopping if ledger.shares else ():
        ledger.note_stopping(cluster.held[num])


def _num_jobs(cluster: ClusterIndex) -> dict[str, int]:
    """Return how many jobs of each project and its parts hold slots."""
    own: dict[str, int] = {}
    for held in cluster.held.values():
        own[held.project] = own.get(held.project, 0) + 1
    return rolled_up(cluster.projects, own)


def _demand_within_limits(cluster: ClusterIndex, num_jobs: dict[str, int]) -> dict[str, int]:
    """Return the queued demand by project without the jobs beyond a limit on running jobs."""
    left: dict[str, int] = {
        one.name: max(one.max_running - num_jobs.get(one.name, 0), 0)
        for one in cluster.projects.values()
        if one.max_running is not None
    }
    demand: dict[str, int] = {}
    # The jobs of the highest priority count, and of equal ones the largest.
    for (project, _, slots), queued in sorted(
        cluster.queued.items(), key=lambda item: (item[0][0], -item[0][1], -item[0][2])
    ):
        limits = [one.name for one in lineage(cluster.projects, project) if one.name in left]
        num = min([queued.num, *(left[name] for name in limits)])
        for name in limits:
            left[name] -= num
        demand[project] = demand.get(project, 0) + num * slots
    return demand
