"""Routes of `phalanx login`: the provider, the two ways to begin, and the end. They need no token."""

from __future__ import annotations

from fastapi import APIRouter, Response

from phalanx.schemas.api.login import (
    BrowserLogin,
    DeviceLogin,
    FinishLoginRequest,
    LoginResult,
    LoginView,
    StartBrowserRequest,
)
from phalanx.server.access import OPEN
from phalanx.server.context import Here, asking_provider
from phalanx.server.strict_requests import StrictRoute
from phalanx.services.login import flows

router = APIRouter(prefix="/api/v1/login", tags=["login"], route_class=StrictRoute)


@router.get("", openapi_extra=OPEN)
async def get_login(here: Here) -> LoginView:
    """The identity provider; 404 where none is configured."""
    config = here.provider().config
    return LoginView(issuer=config.issuer, provider=config.provider_name)


@router.post("/device", openapi_extra=OPEN)
async def post_device(here: Here, response: Response) -> DeviceLogin:
    """Begin a login that the user confirms on any device, with the code of the answer."""
    response.headers["Cache-Control"] = "no-store"
    provider, now = here.provider(), here.clock.now()
    return await asking_provider(lambda: flows.start_device(here.platform, provider, now))


@router.post("/browser", openapi_extra=OPEN)
async def post_browser(
    here: Here, request: StartBrowserRequest, response: Response
) -> BrowserLogin:
    """Begin a login in a browser, which brings a code back to an address of the user's machine."""
    response.headers["Cache-Control"] = "no-store"
    provider, now, address = here.provider(), here.clock.now(), request.redirect_uri
    return await asking_provider(lambda: flows.start_browser(here.platform, provider, address, now))


@router.post("/finish", openapi_extra=OPEN)
async def post_finish(here: Here, request: FinishLoginRequest, response: Response) -> LoginResult:
    """End a login: the answer has a token once its user has confirmed it."""
    response.headers["Cache-Control"] = "no-store"
    provider, now = here.provider(), here.clock.now()
    return await asking_provider(lambda: flows.finish(here.platform, provider, request, now))
