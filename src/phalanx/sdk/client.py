"""`PhalanxClient`: the whole API as methods of one class."""

from __future__ import annotations

import httpx

from phalanx.schemas.api.server import HelloRequest, HelloResponse, InfoView
from phalanx.sdk.jobs import JobCalls
from phalanx.sdk.resources import ResourceCalls
from phalanx.sdk.transport import V1


class PhalanxClient(JobCalls, ResourceCalls):
    """A client of one server, with one method for each route.

    Args:
        url: Address of the server, such as `http://127.0.0.1:8080`.
        token: The bearer token of the server's home.
        transport: Replaces the network in tests.

    Every method raises ServerUnavailable when no server answers. Not safe for use by several threads.
    """

    def is_healthy(self) -> bool:
        """Whether a server answers; False instead of an error."""
        try:
            answer = self._http.get("/healthz", timeout=5.0)
            return answer.is_success and bool(answer.json().get("status") == "ok")
        except (httpx.HTTPError, ValueError, AttributeError):
            return False

    def info(self) -> InfoView:
        """The server's version, process and state."""
        return self._get(f"{V1}/info", InfoView)

    def hello(self, client: str = "") -> HelloResponse:
        """Announce this client; an embedded server stays up for it."""
        body = HelloRequest(client=client)
        return self._post(f"{V1}/clients/hello", body, HelloResponse)
