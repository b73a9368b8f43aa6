"""Bodies about the control plane itself and the clients that use it."""

from __future__ import annotations

from phalanx.schemas.api.body import At, RequestBody, ResponseBody

API_VERSION = 1


class InfoView(ResponseBody):
    """Who answers."""

    version: str
    api: int = API_VERSION
    pid: int
    home: str
    started_at: At
    now: At
    num_live_jobs: int
    idle_exit_s: float | None = None
    trouble: str | None = None  # why nothing can be stored at present, a full disk for example


class HelloRequest(RequestBody):
    """A client is here; an embedded server stays for it."""

    client: str = ""


class HelloResponse(ResponseBody):
    """Seconds for which the server stays without another call; None: for ever."""

    keep_alive_s: float | None
