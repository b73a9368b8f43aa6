"""Spans of a job, made of its stored events in their order.

The trace of the job has its root span, the states that the job was in, and its attempts with what happened
in each. The trace of a generation has the start of its ranks, restore, first step, saves, failure and end.
A span has a name, codes and numbers, and never a text of a user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from phalanx.core.jobs.model import HOLDING, TERMINAL, JobState
from phalanx.core.tracing.identity import ATTEMPT, GENERATION, JOB, JobTrace, SpanContext, span_id

Value = str | int | float | bool
MAX_EVENTS = 100
"""Points in time that one span keeps; later ones are left out."""
_FAILED = frozenset({"rank_failed", "ranks_stalled"})
# A generation may begin when the last of these has happened.
_BEFORE_START = frozenset(
    {"attempt_placed", "node_ready", "ranks_ended", "backoff_elapsed", "node_released"}
)
_OF_ATTEMPT = frozenset({"node_ready", "node_lost", "launch_failed", "stop_requested"})
_US = 1_000_000
_NONE: Mapping[str, Value] = {}


class TracedEvent(Protocol):
    """A stored event of a job, as `store.events.StoredEvent`."""

    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def at(self) -> int: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def attempt(self) -> int | None: ...  # noqa: D102
    @property
    def generation(self) -> int | None: ...  # noqa: D102
    @property
    def data(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def reason_code(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class SaveTime:
    """When a checkpoint was committed, microseconds UTC, and how long its save took, in seconds."""

    at: int
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """Times that are stored beside the events."""

    #: completion of the first step by (attempt, generation), microseconds UTC
    first_steps: Mapping[tuple[int, int], int] = field(default_factory=dict)
    #: saves by the path of the checkpoint
    saves: Mapping[str, SaveTime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a job's traces."""

    context: SpanContext  # its identifiers
    parent: str | None  # span in the same trace; None: it is the root
    name: str  # what it is, of a fixed set of names
    begin: int  # µs UTC
    end: int | None  # µs UTC, not before `begin`; None: it has not ended
    attributes: Mapping[str, Value] = field(default_factory=dict)  # codes and numbers
    ok: bool | None = None  # whether it went well; None: it does not say
    link: SpanContext | None = None  # the attempt of a generation
    events: tuple[tuple[int, str], ...] = ()  # points in time within it, µs UTC, with their kinds


@dataclass(slots=True)
class _Open:
    """A span that has not ended."""

    span: Span

    def mark(self, at: int, name: str) -> None:
        """Add a point in time."""
        if len(self.span.events) < MAX_EVENTS:
            self.span = replace(self.span, events=(*self.span.events, (at, name)))

    def over(self, end: int, ok: bool | None = None, **attributes: Value) -> Span:
        """The span with its end."""
        more = {f"phalanx.{name}": value for name, value in attributes.items()}
        return replace(
            self.span,
            end=max(end, self.span.begin),
            ok=ok,
            attributes={**self.span.attributes, **more},
        )


@dataclass(slots=True)
class _Generation:
    """A generation that has not ended."""

    number: int
    root: _Open
    started_at: int | None = None  # the newest start of ranks on a node
    is_up: bool = False  # all ranks have started
    has_stepped: bool = False  # the span of the first step is made
    ending_at: int | None = None  # the first failure or end
    ended_at: int | None = None  # the newest end of ranks on a node
    cause: str = ""  # code of the first failure


class JobSpans:
    """Makes the spans of one job. Events are added in order, each once."""

    def __init__(self, trace: JobTrace, label: str, project: str) -> None:
        self.trace = trace
        self._common: dict[str, Value] = {"phalanx.job": label, "phalanx.project": project}
        self._root: _Open | None = None
        self._state: tuple[str, _Open] | None = None
        self._attempt: tuple[int, _Open] | None = None
        self._generation: _Generation | None = None
        self._launch: tuple[int, int] | None = None  # placed, and the newest node that was ready
        self._ready_at = 0  # when the next generation may begin
        self._num_attempts = 0
        self._times = TraceTimes()
        self.is_over = False

    def add(self, event: TracedEvent, times: TraceTimes) -> list[Span]:
        """Take one event; returns the spans that have ended with it."""
        if self.is_over:
            return []
        self._times = times
        return list(self._add(event))

    def open_spans(self) -> list[Span]:
        """The spans that have not ended, outermost first."""
        if self.is_over:
            return []
        generation = None if self._generation is None else self._generation.root
        opened = [
            self._root,
            self._attempt and self._attempt[1],
            self._state and self._state[1],
            generation,
        ]
        return [one.span for one in opened if one is not None]

    def _add(self, event: TracedEvent) -> Iterator[Span]:
        if self._root is None:
            self._root = _Open(Span(self.trace.root, None, JOB, event.at, None, self._common))
        if event.kind in _BEFORE_START:
            self._ready_at = event.at
        if event.kind == "attempt_placed" and (event.attempt or 0) > self._num_attempts:
            yield from self._place(event)
        elif event.generation is not None and event.kind not in _OF_ATTEMPT:
            yield from self._of_generation(event, event.generation)
        if self._attempt is not None and event.kind in _OF_ATTEMPT:
            self._attempt[1].mark(event.at, event.kind)
            if event.kind == "node_ready" and self._launch is not None:
                self._launch = (self._launch[0], event.at)
            elif event.kind != "node_ready":
                self._begin_end(event.at)
        yield from self._enter(event)

    def _place(self, event: TracedEvent) -> Iterator[Span]:
        """Begin an attempt; the wait before it ends here."""
        yield from self._leave_state(event)
        yield from self._end_attempt(event)
        assert self._root is not None
        number = self._num_attempts = event.attempt or 0
        shares = (event.data.get("placement") or {}).get("shares") or ()
        about = self._about(attempt=number, num_nodes=len(shares))
        span = Span(
            self.trace.attempt(number), self._root.span.context.span, ATTEMPT, event.at, None, about
        )
        self._attempt = (number, _Open(span))
        self._launch = (event.at, event.at)

    # -- states ------------------------------------------------------------------------------------

    def _enter(self, event: TracedEvent) -> Iterator[Span]:
        """Follow the state that the job has after an event."""
        now = event.state
        if not now or (self._state is not None and self._state[0] == now):
            return
        yield from self._leave_state(event)
        if now == JobState.RUNNING:
            yield from self._ranks_up(event)
        if now not in HOLDING:
            yield from self._end_attempt(event)
        assert self._root is not None
        if now in TERMINAL:
            self.is_over = True
            ok = {JobState.SUCCEEDED.value: True, JobState.FAILED.value: False}.get(now)
            yield self._root.over(event.at, ok, state=now, reason=event.reason_code)
            return
        above, about = self._root.span.context, self._about(reason=event.reason_code)
        if now in HOLDING and self._attempt is not None:
            above = self._attempt[1].span.context
            about = self._about(attempt=self._attempt[0], reason=event.reason_code)
        context = SpanContext(above.trace, span_id(above.trace, now, event.seq))
        self._state = (now, _Open(Span(context, above.span, now, event.at, None, about)))

    def _leave_state(self, event: TracedEvent) -> Iterator[Span]:
        if self._state is not None:
            yield self._state[1].over(event.at)
            self._state = None

    def _end_attempt(self, event: TracedEvent) -> Iterator[Span]:
        yield from self._end_generation()
        if self._attempt is not None:
            ok = {JobState.SUCCEEDED.value: True, JobState.FAILED.value: False}.get(event.state)
            yield self._attempt[1].over(event.at, ok, reason=event.reason_code)
            self._attempt = None
            self._launch = None

    # -- generations -------------------------------------------------------------------------------

    def _of_generation(self, event: TracedEvent, number: int) -> Iterator[Span]:
        known = self._generation
        if self._attempt is None or event.attempt != self._attempt[0]:
            return
        if known is None or known.number < number:
            yield from self._end_generation()
            known = self._generation = self._begin_generation(number, event.at)
        elif number < known.number:
            return  # a late report of the generation before
        yield from self._first_step(known)
        if event.kind == "ranks_started":
            known.started_at = event.at
        elif event.kind in _FAILED:
            yield from self._failure(known, event)
        elif event.kind == "ranks_ended":
            self._begin_end(event.at)
            known.ended_at = event.at
        elif event.kind == "restored":
            yield self._restore(known, event)
        elif event.kind == "checkpoint_committed":
            yield self._save(known, event)
        elif event.kind == "checkpoint_quarantined":
            known.root.mark(event.at, event.kind)
        elif event.kind == "stacks_captured" and event.data.get("excuse"):
            known.ending_at, known.cause = None, ""  # the ranks had a good reason for the pause

    def _begin_generation(self, number: int, at: int) -> _Generation:
        assert self._attempt is not None
        attempt, span = self._attempt
        context = self.trace.generation(attempt, number)
        begin = min(at, self._ready_at or at)
        about = self._about(attempt=attempt, generation=number)
        root = Span(context, None, GENERATION, begin, None, about, link=span.span.context)
        return _Generation(number, _Open(root))

    def _ranks_up(self, event: TracedEvent) -> Iterator[Span]:
        """All ranks of the generation run."""
        if self._launch is not None and self._attempt is not None:
            attempt, span = self._attempt
            begin, end = self._launch
            above = span.span.context
            context = SpanContext(above.trace, span_id(above.trace, "launch", attempt))
            yield Span(context, above.span, "launch", begin, end, self._about(attempt=attempt))
            self._launch = None
        known = self._generation
        if known is not None and not known.is_up:
            known.is_up = True
            known.started_at = event.at
            yield self._part(known, "start ranks", 0, known.root.span.begin, event.at)

    def _first_step(self, known: _Generation) -> Iterator[Span]:
        assert self._attempt is not None
        at = self._times.first_steps.get((self._attempt[0], known.number))
        if at is None or known.has_stepped or not known.is_up or known.started_at is None:
            return
        known.has_stepped = True
        yield self._part(known, "first step", 0, known.started_at, at)

    def _restore(self, known: _Generation, event: TracedEvent) -> Span:
        begin = event.at - round(float(event.data.get("took_s") or 0.0) * _US)
        about: dict[str, Value] = {"step": int(event.data.get("step") or 0)}
        return self._part(known, "restore", event.seq, begin, event.at, about)

    def _save(self, known: _Generation, event: TracedEvent) -> Span:
        saved = self._times.saves.get(str(event.data.get("path", "")), SaveTime(event.at))
        begin, step = saved.at - round(saved.took_s * _US), int(event.data.get("step") or 0)
        return self._part(known, "save", event.seq, begin, saved.at, {"step": step}, True)

    def _failure(self, known: _Generation, event: TracedEvent) -> Iterator[Span]:
        failure = event.data.get("failure") or {}
        at = min(int(failure.get("at") or event.at), event.at)
        self._begin_end(at)
        if failure.get("collateral"):
            return
        about: dict[str, Value] = {"cause": str(failure.get("cause", ""))}
        about |= {
            name: value
            for name in ("rank", "node_rank")
            if isinstance(value := failure.get(name), int)
        }
        known.cause = known.cause or str(about["cause"])
        yield self._part(known, "detect failure", event.seq, at, event.at, about, False)

    def _begin_end(self, at: int) -> None:
        known = self._generation
        if known is not None:
            known.ending_at = at if known.ending_at is None else min(at, known.ending_at)

    def _end_generation(self) -> Iterator[Span]:
        known = self._generation
        if known is None:
            return
        yield from self._first_step(known)
        self._generation = None
        begin = known.root.span.begin
        last = max(begin, known.ended_at or known.ending_at or known.started_at or begin)
        if known.ending_at is not None:
            yield self._part(known, "end ranks", 0, known.ending_at, last)
        if known.cause:
            yield known.root.over(last, ok=False, cause=known.cause)
        else:
            yield known.root.over(last)

    def _part(
        self,
        known: _Generation,
        name: str,
        number: int,
        begin: int,
        end: int,
        attributes: Mapping[str, Value] = _NONE,
        ok: bool | None = None,
    ) -> Span:
        """A span below that of a generation, which it does not begin before."""
        above = known.root.span
        begin = max(begin, above.begin)
        context = SpanContext(above.context.trace, span_id(above.context.trace, name, number))
        more = {f"phalanx.{key}": value for key, value in attributes.items()}
        about = {**above.attributes, **more}
        return Span(context, above.context.span, name, begin, max(begin, end), about, ok)

    def _about(self, **attributes: Value) -> dict[str, Value]:
        more = {f"phalanx.{name}": value for name, value in attributes.items() if value != ""}
        return {**self._common, **more}
