"""Bodies about logging in over the identity provider."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody
from phalanx.schemas.api.credentials import TokenCreated

Sealed = Annotated[str, Field(min_length=1, max_length=16 << 10, repr=False)]
"""A login that has begun; the client sends it back as it is, and tells it to no other program."""


class LoginView(ResponseBody):
    """The identity provider of a control plane."""

    issuer: str
    provider: str  # its name for users


class DeviceLogin(ResponseBody):
    """A login that the user confirms on any device, with a code."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None  # the same with the code in it
    expires_at: At
    interval_s: float  # between two requests of the client that ask for the end
    login: Sealed


class StartBrowserRequest(RequestBody):
    """Begins a login in a browser, which brings its code back to the command."""

    redirect_uri: Annotated[str, Field(max_length=200)]


class BrowserLogin(ResponseBody):
    """A login in a browser: it opens the URL, and brings back the state and a code."""

    authorization_url: str
    state: str
    expires_at: At
    login: Sealed


class FinishLoginRequest(RequestBody):
    """Ends a login. `code` and `state` are what the browser brought; None for one on another device."""

    login: Sealed
    code: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    state: Annotated[str | None, Field(max_length=200, repr=False)] = None


class LoginResult(ResponseBody):
    """The token that a login ended in; None: its user has not confirmed it yet.

    With `slow_down` the client has to wait five seconds longer between its requests from now on.
    """

    token: TokenCreated | None = None
    slow_down: bool = False
