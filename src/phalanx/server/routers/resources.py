"""Routes for pools, nodes, projects and the scheduler's policy."""

from __future__ import annotations

from fastapi import APIRouter, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.health.alerts import ProbeView
from phalanx.schemas.api.pools import (
    ApplyPoolsRequest,
    ApplyProjectsRequest,
    ApplyResponse,
    DrainRequest,
    DrainResponse,
    ForgetPoolRequest,
    ForgetPoolResponse,
    LeftoversView,
    NodeView,
    PoolScalingView,
    PoolView,
    ProjectView,
    QuotaList,
    ScalePoolRequest,
    SchedulerPolicyView,
    SetPolicyRequest,
    StoreView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import ObjectName, SearchText, StrictRoute
from phalanx.services.planning import policy
from phalanx.services.probes.pool_probes import list_probes
from phalanx.services.quotas.usage import list_quotas
from phalanx.services.resources import inventory, pools, projects
from phalanx.services.resources.scaling import reset_scaling, scale_pool, show_scaling
from phalanx.services.resources.stores import list_stores

router = APIRouter(prefix="/api/v1", tags=["resources"], route_class=StrictRoute)
_CHANGE = needs(Permission.PLATFORM_CHANGE, Of.WHOLE)


@router.get("/pools", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_pools(here: Here, by: By) -> list[PoolView]:
    """Pools with their free slots."""
    found = inventory.list_pools(here.platform)
    return inventory.only_jobs_of(here.platform, by.projects(Permission.JOBS_READ), found)


@router.post("/pools/apply", openapi_extra=_CHANGE)
def post_pools(here: Here, by: By, request: ApplyPoolsRequest) -> ApplyResponse:
    """Add or replace the pools of a pool file, all or none; repeating it changes nothing."""
    return pools.apply_pools(here.platform, request.file, here.clock.now(), by.actor)


@router.get("/pools/{name}", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_pool(here: Here, by: By, name: ObjectName) -> PoolView:
    """One pool with its part of the pool file."""
    found = [inventory.show_pool(here.platform, name)]
    return inventory.only_jobs_of(here.platform, by.projects(Permission.JOBS_READ), found)[0]


@router.get("/pools/{name}/scaling", openapi_extra=needs(Permission.PLATFORM_SEE, Of.WHOLE))
def get_scaling(here: Here, name: ObjectName) -> PoolScalingView:
    """The scaling of a pool: its bounds, its open requests for nodes, and its decisions."""
    return show_scaling(here.platform, name)


@router.put("/pools/{name}/scaling", openapi_extra=_CHANGE)
def put_scaling(here: Here, by: By, name: ObjectName, request: ScalePoolRequest) -> PoolScalingView:
    """Set bounds of a pool, or turn its autoscaling off or on; they precede those of the pool file."""
    return scale_pool(here.platform, name, request, here.clock.now(), by.actor)


@router.delete("/pools/{name}/scaling", status_code=204, openapi_extra=_CHANGE)
def delete_scaling(here: Here, name: ObjectName) -> Response:
    """Return to the bounds of the pool file; may be repeated."""
    reset_scaling(here.platform, name)
    return Response(status_code=204)


@router.delete("/pools/{name}", status_code=204, openapi_extra=_CHANGE)
def delete_pool(here: Here, name: ObjectName) -> Response:
    """Remove a pool in which no job runs."""
    pools.remove_pool(here.platform, name)
    return Response(status_code=204)


@router.get("/pools/{name}/leftovers", openapi_extra=_CHANGE)
def get_leftovers(here: Here, name: ObjectName) -> list[LeftoversView]:
    """What control planes, this one included, have left in the cluster of a pool."""
    return pools.leftovers(here.platform, name)


@router.post("/pools/{name}/forget", openapi_extra=_CHANGE)
def post_forget(here: Here, name: ObjectName, request: ForgetPoolRequest) -> ForgetPoolResponse:
    """Remove the objects of a control plane from the cluster of a pool; may be repeated."""
    return pools.forget_pool(here.platform, name, request.owner)


@router.get("/nodes", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_nodes(here: Here, by: By, pool: SearchText = None) -> list[NodeView]:
    """Nodes with their free slots."""
    found = inventory.list_nodes(here.platform, pool)
    return inventory.only_jobs_of(here.platform, by.projects(Permission.JOBS_READ), found)


@router.get("/nodes/{name}", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_node(here: Here, by: By, name: ObjectName) -> NodeView:
    """One node."""
    found = [inventory.show_node(here.platform, name)]
    return inventory.only_jobs_of(here.platform, by.projects(Permission.JOBS_READ), found)[0]


@router.post("/nodes/{name}/drain", openapi_extra=needs(Permission.NODES_CHANGE, Of.WHOLE))
def post_drain(here: Here, by: By, name: ObjectName, request: DrainRequest) -> DrainResponse:
    """Keep new jobs from starting on a node; may be repeated."""
    return pools.drain(here.platform, name, request, here.clock.now(), by.actor)


@router.post("/nodes/{name}/undrain", openapi_extra=needs(Permission.NODES_CHANGE, Of.WHOLE))
def post_undrain(here: Here, name: ObjectName) -> NodeView:
    """Allow jobs to start on a node again; may be repeated."""
    pools.undrain(here.platform, name)
    return inventory.show_node(here.platform, name)


@router.get("/projects", openapi_extra=needs(Permission.PROJECT_READ, Of.ANY))
def get_projects(here: Here, by: By) -> list[ProjectView]:
    """Projects with their limits and usage."""
    seen = by.projects(Permission.PROJECT_READ)
    found = projects.list_projects(here.platform, here.clock.now())
    return [one for one in found if seen is None or one.name in seen]


@router.post("/projects/apply", openapi_extra=_CHANGE)
def post_projects(here: Here, by: By, request: ApplyProjectsRequest) -> ApplyResponse:
    """Add or replace the projects of a project file, all or none."""
    return projects.apply_projects(here.platform, request.file, here.clock.now(), by.actor)


@router.get("/projects/{name}", openapi_extra=needs(Permission.PROJECT_READ, Of.PROJECT))
def get_project(here: Here, by: By, name: ObjectName) -> ProjectView:
    """One project with its part of the project file."""
    return projects.show_project(
        here.platform, name, here.clock.now(), by.projects(Permission.PROJECT_READ)
    )


@router.delete("/projects/{name}", status_code=204, openapi_extra=_CHANGE)
def delete_project(here: Here, by: By, name: ObjectName) -> Response:
    """Remove a project's limits; its jobs continue."""
    projects.remove_project(here.platform, name, here.clock.now(), by.actor)
    return Response(status_code=204)


@router.get("/stores", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_stores(here: Here) -> list[StoreView]:
    """Stores of data outside the nodes, with the residency of each, from a project file."""
    return list_stores(here.platform)


@router.get("/probes", openapi_extra=needs(Permission.METRICS_READ, Of.WHOLE))
def get_probes(here: Here) -> list[ProbeView]:
    """The newest probe job of each pool; a pool without a free slot is not probed."""
    return list_probes(here.platform, here.settings.probes.resolved())


@router.get("/quotas", openapi_extra=needs(Permission.PROJECT_READ, Of.ANY))
def get_quotas(
    here: Here, by: By, project: SearchText = None, user: SearchText = None
) -> QuotaList:
    """Quotas of projects, slot types and users with what counts against them, and their alerts."""
    return list_quotas(
        here.platform,
        seen=by.projects(Permission.PROJECT_READ),
        owner=by.principal.owner,
        project=project,
        user=user,
    )


@router.get("/scheduler/policy", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_policy(here: Here) -> SchedulerPolicyView:
    """The planning policy in effect, and where it comes from."""
    return policy.show_policy(here.platform)


@router.put("/scheduler/policy", openapi_extra=_CHANGE)
def put_policy(here: Here, by: By, request: SetPolicyRequest) -> SchedulerPolicyView:
    """Set the planning policy: the next planner pass uses it; repeating it changes nothing."""
    return policy.set_policy(here.platform, request.policy, here.clock.now(), by.actor)


@router.delete("/scheduler/policy", status_code=204, openapi_extra=_CHANGE)
def delete_policy(here: Here) -> Response:
    """Return to the policy of the control plane's start; may be repeated."""
    policy.reset_policy(here.platform)
    return Response(status_code=204)
