"""Spans as a request of OTLP in JSON, which collectors take at `/v1/traces`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phalanx.core.tracing.spans import Span

SERVICE = {"service.name": "phalanx"}
"""Attributes of the resource that spans of jobs belong to."""
_INTERNAL = 1
_OK, _ERROR = 1, 2


def request(spans: Iterable[Span], resource: Mapping[str, str] = SERVICE) -> dict[str, Any]:
    """One `ExportTraceServiceRequest` with all spans that have ended; open ones are left out."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {
                        "scope": {"name": "phalanx.jobs"},
                        "spans": [_span(one, one.end) for one in spans if one.end is not None],
                    }
                ],
            }
        ]
    }


def _span(span: Span, end: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "traceId": span.context.trace,
        "spanId": span.context.span,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.begin),
        "endTimeUnixNano": _nanoseconds(end),
        "attributes": _attributes(span.attributes),
    }
    if span.parent is not None:
        body["parentSpanId"] = span.parent
    if span.events:
        body["events"] = [
            {"timeUnixNano": _nanoseconds(at), "name": name} for at, name in span.events
        ]
    if span.link is not None:
        body["links"] = [{"traceId": span.link.trace, "spanId": span.link.span}]
    if span.ok is not None:
        body["status"] = {"code": _OK if span.ok else _ERROR}
    return body


def _nanoseconds(at: int) -> str:
    return str(at * 1000)


def _attributes(values: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return [{"key": key, "value": _value(one)} for key, one in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
