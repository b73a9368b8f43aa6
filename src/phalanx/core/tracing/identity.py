"""Identifiers of traces and spans, computed from what the spans are about.

The control plane, supervisors and ranks compute the same identifiers without asking each other. A job has
one trace for itself and one for each generation. The root span of a generation links to its attempt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

TRACEPARENT = "TRACEPARENT"
TRACESTATE = "TRACESTATE"
JOB, ATTEMPT, GENERATION = "job", "attempt", "generation"
"""Names of spans that others hang under."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The identifiers of a span: 32 and 16 hexadecimal digits."""

    trace: str
    span: str

    def traceparent(self, *, sampled: bool = True) -> str:
        """The header and variable of W3C Trace Context."""
        return f"00-{self.trace}-{self.span}-{'01' if sampled else '00'}"


@dataclass(frozen=True, slots=True)
class JobTrace:
    """The traces of one job. `uid` is unique over all databases, as in `JobIdentity`."""

    num: int
    uid: str = ""

    @property
    def root(self) -> SpanContext:
        """The span of the whole job."""
        trace = _digest(32, "job", self.uid or str(self.num))
        return SpanContext(trace, span_id(trace, JOB, 0))

    def attempt(self, attempt: int) -> SpanContext:
        """The span of an attempt, in the trace of the job."""
        trace = self.root.trace
        return SpanContext(trace, span_id(trace, ATTEMPT, attempt))

    def generation(self, attempt: int, generation: int) -> SpanContext:
        """The root span of a generation, which has a trace of its own."""
        trace = _digest(32, self.root.trace, str(attempt), str(generation))
        return SpanContext(trace, span_id(trace, GENERATION, 0))

    def tracestate(self, attempt: int, generation: int | None = None) -> str:
        """The entry of the platform in `TRACESTATE`, by which a backend or a user finds the job."""
        place = f"j{self.num}.a{attempt}"
        return f"phalanx={place}" if generation is None else f"phalanx={place}.g{generation}"


def span_id(trace: str, name: str, number: int) -> str:
    """The identifier of a span; `number` is unique among spans of the name, such as that of its event."""
    return _digest(16, trace, name, str(number))


def _digest(digits: int, *parts: str) -> str:
    return hashlib.sha256("\0".join(("phalanx", *parts)).encode()).hexdigest()[:digits]
