"""The base models of API bodies, times and errors. Times are RFC 3339 with Z."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

At = AwareDatetime


def at_of(at_us: int) -> datetime:
    """Integer microseconds UTC as a time of the API."""
    seconds, micro = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)


def at_or_none(at_us: int | None) -> datetime | None:
    """The same, for what may not have happened yet."""
    return None if at_us is None else at_of(at_us)


class ResponseBody(BaseModel):
    """What the server answers: clients tolerate what a newer server adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RequestBody(BaseModel):
    """What a client sends: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProblemView(ResponseBody):
    """One fault in a spec: where, what, what is there."""

    path: str
    message: str
    value: str | None = None


class ErrorView(ResponseBody):
    """The body of every answer that is not a success."""

    code: str
    message: str
    hint: str | None = None
    retryable: bool = False
    problems: list[ProblemView] = Field(default_factory=list)
