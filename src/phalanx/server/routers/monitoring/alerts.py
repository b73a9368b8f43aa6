"""Routes about the built-in notifier: alerts, silences, receivers and messages."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.health.alerts import (
    AlertsView,
    DeliveryView,
    ReceiverView,
    SilenceRequest,
    SilenceView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import ObjectName, StrictRoute
from phalanx.services.notify import commands
from phalanx.store.notify.deliveries import DeliveryState

router = APIRouter(prefix="/api/v1/alerts", tags=["alerts"], route_class=StrictRoute)
_Num = Annotated[int, Path(ge=1, lt=2**63)]
_SEE = needs(Permission.METRICS_READ, Of.WHOLE)
_CHANGE = needs(Permission.PLATFORM_CHANGE, Of.WHOLE)


@router.get("", openapi_extra=_SEE)
def get_alerts(here: Here) -> AlertsView:
    """Alerts that are pending, firing or were resolved within a day, and the receivers."""
    return commands.list_alerts(here.platform, here.notify, here.clock.now())


@router.get("/silences", openapi_extra=_SEE)
def get_silences(here: Here) -> list[SilenceView]:
    """The silences that are not over."""
    return commands.list_silences(here.platform, here.clock.now())


@router.post("/silences", status_code=201, openapi_extra=_CHANGE)
def post_silence(here: Here, caller: By, request: SilenceRequest) -> SilenceView:
    """Silence alerts for a while: they live on, and are not told."""
    return commands.add_silence(here.platform, request, here.clock.now(), actor=caller.actor)


@router.delete("/silences/{num}", status_code=204, openapi_extra=_CHANGE)
def delete_silence(here: Here, num: _Num) -> Response:
    """End a silence."""
    commands.remove_silence(here.platform, num, here.clock.now())
    return Response(status_code=204)


@router.get("/deliveries", openapi_extra=_CHANGE)
def get_deliveries(
    here: Here,
    state: Literal["all", "open", "sent", "dead"] = "all",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[DeliveryView]:
    """The newest messages to receivers; those that were done a week ago are deleted."""
    states = tuple(DeliveryState) if state == "all" else (DeliveryState(state),)
    return commands.list_deliveries(here.platform, states, limit)


@router.post("/deliveries/{num}/resend", openapi_extra=_CHANGE)
def post_resend(here: Here, num: _Num) -> DeliveryView:
    """Send a message again that was given up, with the same id."""
    return commands.resend(here.platform, num, here.clock.now())


@router.post("/receivers/{name}/enable", openapi_extra=_CHANGE)
def post_enable(here: Here, name: ObjectName) -> ReceiverView:
    """Send to a receiver again that has answered that it is gone; may be repeated."""
    return commands.enable_receiver(here.platform, here.notify, name)


@router.post("/receivers/{name}/test", status_code=201, openapi_extra=_CHANGE)
def post_test(here: Here, name: ObjectName) -> DeliveryView:
    """Send a message to a receiver that only shows that messages arrive."""
    return commands.try_receiver(here.platform, here.notify, name, here.clock.now())
