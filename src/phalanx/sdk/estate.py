"""The part of the client that is about pools, nodes, projects and the planner's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter

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

M = TypeVar("M", bound=BaseModel)
_V1 = "/api/v1"


class Calls(Protocol):
    """How the methods here reach the server."""

    def _get(
        self,
        path: str,
        model: type[M],
        params: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> M: ...

    def _bytes(
        self, path: str, params: Mapping[str, Any] | None = None, wait_s: float = 0.0
    ) -> bytes: ...

    def _post(
        self,
        path: str,
        body: BaseModel | None,
        model: type[M],
        params: Mapping[str, str] | None = None,
    ) -> M: ...

    def _delete(self, path: str) -> None: ...


class EstateCalls:
    """Mixed into `PhalanxClient`: one method per route."""

    def pools(self: Calls) -> list[PoolView]:
        """Pools and what is free in them."""
        return TypeAdapter(list[PoolView]).validate_json(self._bytes(f"{_V1}/pools"))

    def pool(self: Calls, name: str) -> PoolView:
        """One pool with its part of the pool file. Raises NotFound."""
        return self._get(f"{_V1}/pools/{name}", PoolView)

    def apply_pools(self: Calls, file: Mapping[str, Any]) -> ApplyResponse:
        """Add or replace the pools of a pool file. Raises SpecInvalid, Conflict."""
        body = ApplyRequest(file=dict(file))
        return self._post(f"{_V1}/pools/apply", body, ApplyResponse)

    def remove_pool(self: Calls, name: str) -> None:
        """Forget a pool. Raises NotFound, and Conflict while jobs run in it."""
        self._delete(f"{_V1}/pools/{name}")

    def nodes(self: Calls, pool: str | None = None) -> list[NodeView]:
        """Nodes and what is free on them."""
        found = self._bytes(f"{_V1}/nodes", {"pool": pool})
        return TypeAdapter(list[NodeView]).validate_json(found)

    def node(self: Calls, name: str) -> NodeView:
        """One node. Raises NotFound."""
        return self._get(f"{_V1}/nodes/{name}", NodeView)

    def drain(
        self: Calls,
        name: str,
        *,
        reason: str = "",
        state: Literal["drained", "quarantined"] = "drained",
        jobs: Literal["leave", "move"] = "leave",
    ) -> DrainResponse:
        """Let nothing start on a node any more. Raises NotFound."""
        body = DrainRequest(reason=reason, state=state, jobs=jobs)
        return self._post(f"{_V1}/nodes/{name}/drain", body, DrainResponse)

    def undrain(self: Calls, name: str) -> NodeView:
        """Let jobs start on a node again. Raises NotFound."""
        return self._post(f"{_V1}/nodes/{name}/undrain", None, NodeView)

    def projects(self: Calls) -> list[ProjectView]:
        """Projects, their limits and what they hold."""
        found = self._bytes(f"{_V1}/projects")
        return TypeAdapter(list[ProjectView]).validate_json(found)

    def project(self: Calls, name: str) -> ProjectView:
        """One project with its part of the project file. Raises NotFound."""
        return self._get(f"{_V1}/projects/{name}", ProjectView)

    def apply_projects(self: Calls, file: Mapping[str, Any]) -> ApplyResponse:
        """Add or replace the projects of a project file. Raises SpecInvalid."""
        body = ApplyRequest(file=dict(file))
        return self._post(f"{_V1}/projects/apply", body, ApplyResponse)

    def remove_project(self: Calls, name: str) -> None:
        """Forget a project's limits. Raises NotFound, Conflict for a parent of others."""
        self._delete(f"{_V1}/projects/{name}")

    def why(self: Calls, num: int) -> WhyView:
        """Why a job is where it is. Raises NotFound."""
        return self._get(f"{_V1}/jobs/{num}/why", WhyView)
