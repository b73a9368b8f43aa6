"""An assignment as it is valid on another machine: addresses and paths of the home are replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire.assignments import Assignment


class ClusterSettings(Protocol):
    """The keys of a pool that say what its nodes see of the control plane."""

    @property
    def server_url(self) -> str | None:
        """URL of the control plane for nodes; None: that of clients."""

    @property
    def checkpoints(self) -> str | None:
        """Checkpoint folder on the nodes; None: the same path as here."""


def outbound(assignment: Assignment, pool: ClusterSettings, home: HomeLayout) -> Assignment:
    """The assignment with the addresses and paths that are valid on a node of the cluster."""
    # Files of the home are not there: the supervisor asks the control plane for the secrets.
    changes: dict[str, Any] = {"own_secrets_file": None}
    if pool.server_url is not None:
        changes |= {"server_url": pool.server_url, "server_file": None}
    if pool.checkpoints is not None:
        own, theirs = str(home.checkpoints_dir), pool.checkpoints

        def on_node(path: str) -> str:
            return theirs + path.removeprefix(own) if path.startswith(f"{own}/") else path

        gang, role = assignment.gang, assignment.role
        changes["gang"] = replace(gang, checkpoint_dir=on_node(gang.checkpoint_dir))
        if role is not None:
            changes["role"] = replace(role, lead_dir=on_node(role.lead_dir))
    return assignment.model_copy(update=changes)
