"""The entitlement stage: what each project may count on, and what it uses with its parts."""

from __future__ import annotations

from phalanx.core.scheduling.model.entitlement import project_shares, rolled_up
from phalanx.core.scheduling.stages.scheduling_pass import Pass


def entitle(state: Pass) -> None:
    """Set the shares of the projects and their use, the use of their parts included."""
    cluster, ledger = state.cluster, state.ledger
    capacity = sum(group.num_nodes * group.size for group in cluster.index.groups)
    ledger.shares = project_shares(cluster.projects, cluster.used, cluster.demand, capacity)
    ledger.used = rolled_up(cluster.projects, cluster.used)
