"""The route about traces of jobs, and traces in the form that OpenTelemetry collectors take."""

from __future__ import annotations

from typing import Any

import httpx

from phalanx.core.tracing import otlp
from phalanx.schemas.api.health.traces import TraceView
from phalanx.sdk.transport import V1, Transport


class TraceCalls(Transport):
    """The calls about traces of jobs; `client.traces`."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def of_job(self, num: int, *, limit: int = 2000) -> TraceView:
        """The spans of a job, about `limit` at most: of more, the oldest are left out. Raises NotFound."""
        return self._get(f"{V1}/jobs/{num}/trace", TraceView, {"limit": limit})

    def otlp(self, num: int, *, limit: int = 10_000) -> dict[str, Any]:
        """The same spans as a request of OTLP in JSON, without those that have not ended.

        A collector takes it at `/v1/traces` with `Content-Type: application/json`. The identifiers are
        those of the spans that the control plane sends itself: spans may be sent twice. Raises NotFound.
        """
        return otlp_document(self.of_job(num, limit=limit))


def otlp_document(view: TraceView) -> dict[str, Any]:
    """The spans of an answer as a request of OTLP in JSON."""
    return otlp.request(one.to_span() for one in view.spans)
