"""Bodies about the traces of jobs."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from phalanx.core.tracing.identity import SpanContext
from phalanx.core.tracing.spans import Span
from phalanx.schemas.api.body import At, ResponseBody, at_of, at_or_none, us_of


class SpanLinkView(ResponseBody):
    """A span of another trace that a span belongs to."""

    trace_id: str
    span_id: str


class SpanPointView(ResponseBody):
    """A point in time within a span: an event of the job of this kind."""

    at: At
    name: str


class SpanView(ResponseBody):
    """One span. `end` None: it has not ended; `ok` None: it does not say whether it went well."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits
    parent_id: str | None  # span in the same trace; None: the first span of its trace
    name: str
    begin: At
    end: At | None
    ok: bool | None = None
    attributes: dict[str, bool | int | float | str] = Field(default_factory=dict)
    link: SpanLinkView | None = None  # of a generation: its attempt
    points: list[SpanPointView] = Field(default_factory=list)

    @classmethod
    def of_span(cls, span: Span) -> Self:
        """The span as the API has it."""
        link = span.link
        return cls(
            trace_id=span.context.trace,
            span_id=span.context.span,
            parent_id=span.parent,
            name=span.name,
            begin=at_of(span.begin),
            end=at_or_none(span.end),
            ok=span.ok,
            attributes=dict(span.attributes),
            link=None if link is None else SpanLinkView(trace_id=link.trace, span_id=link.span),
            points=[SpanPointView(at=at_of(at), name=name) for at, name in span.events],
        )

    def to_span(self) -> Span:
        """The span that this was made of."""
        link = self.link
        return Span(
            context=SpanContext(self.trace_id, self.span_id),
            parent=self.parent_id,
            name=self.name,
            begin=us_of(self.begin),
            end=None if self.end is None else us_of(self.end),
            attributes=self.attributes,
            ok=self.ok,
            link=None if link is None else SpanContext(link.trace_id, link.span_id),
            events=tuple((us_of(one.at), one.name) for one in self.points),
        )


class TraceView(ResponseBody):
    """The spans of a job, of its own trace and of those of its generations, in the order of their begins.

    `trace_id` is that of the job. `truncated`: older spans were left out.
    """

    job: int
    trace_id: str
    spans: list[SpanView]
    truncated: bool = False
