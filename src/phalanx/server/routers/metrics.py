"""Metrics of the platform and of live jobs, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from phalanx.server.context import Here
from phalanx.server.observe.exposition import Exposition

router = APIRouter(tags=["telemetry"])
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics")
def get_metrics_text(here: Here, request: Request) -> Response:
    """Gauges, counters and histograms in the text format of Prometheus; wants the bearer token."""
    exposition = request.app.state.exposition
    assert isinstance(exposition, Exposition)
    return Response(exposition.scrape(here.clock.now()), media_type=CONTENT_TYPE)
