"""The calls of a tunnel's two sides: the client under its job, the supervisor under its attempt."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.errors import PlatformError, UserError
from phalanx.schemas.wire.tunnels import (
    MAX_CHUNK_BYTES,
    OpenTunnelRequest,
    TunnelChunk,
    TunnelData,
    TunnelOrder,
    TunnelTaken,
    TunnelView,
)
from phalanx.server.access import ATTEMPT, Of, bearer_token, needs
from phalanx.server.context import By, Context, Here, in_thread
from phalanx.server.strict_requests import JobNum, StrictRoute, SupervisorKey, Wait
from phalanx.server.tunnels.registry import NodeKey, Transferred, TunnelRegistry, topic_of
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.lifecycle.sync import check_live
from phalanx.services.queries.tunnels import announce, is_live, place_of

router = APIRouter(prefix="/api/v1", tags=["tunnels"], route_class=StrictRoute)
_ENTER = needs(Permission.JOBS_ENTER, Of.JOB)
_JOB = "/jobs/{num}/tunnels"
_NODE = "/supervisors/tunnels"
TunnelId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the tunnel.")]
_Position = Annotated[int, Query(ge=0, lt=2**62)]
# A side that has nothing to read asks again after so long, so that it is known to be there.
_LONGEST_WAIT_S = 20.0


def _registry(request: Request) -> TunnelRegistry:
    found = request.app.state.tunnels
    assert isinstance(found, TunnelRegistry)
    return found


# -- clients ---------------------------------------------------------------------------------------


@router.post(_JOB, openapi_extra=_ENTER)
async def post_tunnel(
    here: Here, by: By, request: Request, num: JobNum, wanted: OpenTunnelRequest
) -> TunnelView:
    """Run a command in the environment of a rank, or reach a port of its node, through a tunnel."""
    registry, purpose = _registry(request), wanted.to_core()
    place = await in_thread(place_of, here.platform, num, purpose.rank)
    key = NodeKey(num, place.attempt, place.node_rank)
    made = registry.open(key, by.actor, purpose)
    try:
        # After it is there: the supervisor comes at once.
        now = here.clock.now()
        await in_thread(announce, here.platform, place, purpose, now, by.actor)
    except PlatformError:
        registry.drop(made.id)
        raise
    return TunnelView(
        tunnel=made.id,
        job=num,
        attempt=place.attempt,
        node_rank=place.node_rank,
        rank=purpose.rank,
    )


@router.get(f"{_JOB}/{{tunnel}}", openapi_extra=_ENTER)
async def get_tunnel(
    here: Here,
    by: By,
    request: Request,
    num: JobNum,
    tunnel: TunnelId,
    after: _Position = 0,
    wait_s: Wait = 0.0,
) -> TunnelChunk:
    """The next bytes from the node; those before `after` are confirmed. Waits up to `wait_s` for some."""
    registry = _registry(request)

    def look() -> Transferred:
        found = registry.client_reads(tunnel, num, by.actor, after, MAX_CHUNK_BYTES)
        attempt = registry.attempt_of(tunnel)
        if found.data or found.over or is_live(here.platform, num, attempt):
            return found
        registry.close(tunnel, num, by.actor, "the attempt of the job is over")
        return registry.client_reads(tunnel, num, by.actor, after, MAX_CHUNK_BYTES)

    return await _next(here, (topic_of(tunnel), job_topic(num)), look, wait_s)


@router.post(f"{_JOB}/{{tunnel}}", openapi_extra=_ENTER)
async def post_tunnel_data(
    here: Here, by: By, request: Request, num: JobNum, tunnel: TunnelId, sent: TunnelData
) -> TunnelTaken:
    """Send bytes to the node; repeated ones are passed over."""
    data = _decoded(sent)
    done = _registry(request).client_sends(tunnel, num, by.actor, sent.at, data)
    return _taken(here, tunnel, done)


@router.delete(f"{_JOB}/{{tunnel}}", status_code=204, openapi_extra=_ENTER)
async def delete_tunnel(
    here: Here, by: By, request: Request, num: JobNum, tunnel: TunnelId
) -> Response:
    """End a tunnel with what it runs; may be repeated."""
    _registry(request).close(tunnel, num, by.actor, "closed by its client")
    here.notifier.publish([topic_of(tunnel)])
    return Response(status_code=204)


# -- supervisors -----------------------------------------------------------------------------------


@router.get(_NODE, openapi_extra=ATTEMPT)
async def get_tunnels(here: Here, request: Request, caller: SupervisorKey) -> list[TunnelOrder]:
    """The tunnels that wait for a supervisor of a live attempt; each is given once."""
    key = await _node(here, request, caller)
    return [
        TunnelOrder.of(one.purpose, tunnel=one.id, command=list(one.purpose.command))
        for one in _registry(request).join(key)
    ]


@router.get(f"{_NODE}/{{tunnel}}", openapi_extra=ATTEMPT)
async def get_node_tunnel(
    here: Here,
    request: Request,
    tunnel: TunnelId,
    caller: SupervisorKey,
    after: _Position = 0,
    wait_s: Wait = 0.0,
) -> TunnelChunk:
    """The next bytes from the client; those before `after` are confirmed. Waits up to `wait_s` for some."""
    key, registry = await _node(here, request, caller), _registry(request)

    def look() -> Transferred:
        return registry.node_reads(tunnel, key, after, MAX_CHUNK_BYTES)

    return await _next(here, (topic_of(tunnel),), look, wait_s)


@router.post(f"{_NODE}/{{tunnel}}", openapi_extra=ATTEMPT)
async def post_node_data(
    here: Here,
    request: Request,
    tunnel: TunnelId,
    caller: SupervisorKey,
    sent: TunnelData,
) -> TunnelTaken:
    """Send bytes to the client; repeated ones are passed over."""
    key, data = await _node(here, request, caller), _decoded(sent)
    done = _registry(request).node_sends(tunnel, key, sent.at, data, over=sent.over)
    return _taken(here, tunnel, done)


# -- inside ----------------------------------------------------------------------------------------


async def _node(here: Context, request: Request, caller: SupervisorKey) -> NodeKey:
    """The supervisor that calls. Raises Unauthenticated, and PermissionDenied for one that is over."""
    token = bearer_token(request.headers)
    await in_thread(check_live, here.platform, caller, token)
    return NodeKey(*caller[:3])


async def _next(
    here: Context, topics: tuple[str, ...], look: Callable[[], Transferred], wait_s: float
) -> TunnelChunk:
    """The next bytes; the first of `topics` is that of the tunnel."""
    found = await here.poll_until(
        topics,
        min(wait_s, _LONGEST_WAIT_S),
        look,
        lambda one: bool(one.data) or one.over,
    )
    # The other side may have waited for room.
    here.notifier.publish(topics[:1])
    data = base64.b64encode(found.data).decode()
    return TunnelChunk(at=found.at, data=data, over=found.over, why=found.why)


def _taken(here: Context, tunnel: str, done: Transferred) -> TunnelTaken:
    here.notifier.publish([topic_of(tunnel)])
    return TunnelTaken(taken=done.at, over=done.over, why=done.why)


def _decoded(sent: TunnelData) -> bytes:
    try:
        return base64.b64decode(sent.data, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("data: is not base64") from None
