"""The routes about pools, nodes and projects, and about the planner's decision for a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter

from phalanx.schemas.api.pools import (
    ApplyRequest,
    ApplyResponse,
    DrainRequest,
    DrainResponse,
    NodeView,
    PoolView,
)
from phalanx.schemas.api.projects import ProjectView
from phalanx.schemas.api.why import WhyView
from phalanx.sdk.transport import V1, Transport


class ResourceCalls(Transport):
    """One method for each route about what jobs run on and who may use how much of it."""

    def pools(self) -> list[PoolView]:
        """All pools with their free slots."""
        return TypeAdapter(list[PoolView]).validate_json(self._bytes(f"{V1}/pools"))

    def pool(self, name: str) -> PoolView:
        """One pool with its part of the pool file. Raises NotFound."""
        return self._get(f"{V1}/pools/{name}", PoolView)

    def apply_pools(self, file: Mapping[str, Any]) -> ApplyResponse:
        """Add or replace the pools of a pool file. Raises SpecInvalid, Conflict."""
        body = ApplyRequest(file=dict(file))
        return self._post(f"{V1}/pools/apply", body, ApplyResponse)

    def remove_pool(self, name: str) -> None:
        """Remove a pool. Raises NotFound, and Conflict while jobs run in it."""
        self._delete(f"{V1}/pools/{name}")

    def nodes(self, pool: str | None = None) -> list[NodeView]:
        """All nodes, or those of one pool, with their free slots."""
        found = self._bytes(f"{V1}/nodes", {"pool": pool})
        return TypeAdapter(list[NodeView]).validate_json(found)

    def node(self, name: str) -> NodeView:
        """One node. Raises NotFound."""
        return self._get(f"{V1}/nodes/{name}", NodeView)

    def drain(
        self,
        name: str,
        *,
        reason: str = "",
        state: Literal["drained", "quarantined"] = "drained",
        jobs: Literal["leave", "move"] = "leave",
    ) -> DrainResponse:
        """Keep new jobs from starting on a node. Raises NotFound."""
        body = DrainRequest(reason=reason, state=state, jobs=jobs)
        return self._post(f"{V1}/nodes/{name}/drain", body, DrainResponse)

    def undrain(self, name: str) -> NodeView:
        """Allow jobs to start on a node again. Raises NotFound."""
        return self._post(f"{V1}/nodes/{name}/undrain", None, NodeView)

    def projects(self) -> list[ProjectView]:
        """All projects with their limits and usage."""
        found = self._bytes(f"{V1}/projects")
        return TypeAdapter(list[ProjectView]).validate_json(found)

    def project(self, name: str) -> ProjectView:
        """One project with its part of the project file. Raises NotFound."""
        return self._get(f"{V1}/projects/{name}", ProjectView)

    def apply_projects(self, file: Mapping[str, Any]) -> ApplyResponse:
        """Add or replace the projects of a project file. Raises SpecInvalid."""
        body = ApplyRequest(file=dict(file))
        return self._post(f"{V1}/projects/apply", body, ApplyResponse)

    def remove_project(self, name: str) -> None:
        """Remove a project's limits. Raises NotFound, and Conflict for a parent of other projects."""
        self._delete(f"{V1}/projects/{name}")

    def why(self, num: int) -> WhyView:
        """Explain why a job waits, runs or was preempted. Raises NotFound."""
        return self._get(f"{V1}/jobs/{num}/why", WhyView)
