"""The base models of API bodies, times, errors and the server itself. Times are RFC 3339 with Z."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

At = AwareDatetime
API_VERSION = 1
_MISSING = object()
ShortText = Annotated[str, Field(max_length=200)]
"""A name that a client sends."""


_LAST_US = 253_402_300_799_999_999


def us_of(at: datetime) -> int:
    """A time of the API as integer microseconds UTC."""
    return round(at.timestamp() * 1_000_000)


def at_of(at_us: int) -> datetime:
    """Integer microseconds UTC as a time of the API, from 1970 to 9999.

    Times of supervisors with a wrong clock may lie outside.
    """
    seconds, micro = divmod(min(max(at_us, 0), _LAST_US), 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)


def at_or_none(at_us: int | None) -> datetime | None:
    """The same, for what may not have happened yet."""
    return None if at_us is None else at_of(at_us)


@dataclass(frozen=True, slots=True)
class ShownAs:
    """Plain data that another model reads: its JSON schema is the schema of that model."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of the model."""
        return handler(self.model.__pydantic_core_schema__)


class ResponseBody(BaseModel):
    """What the server answers: clients tolerate what a newer server adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    # No private attribute of pydantic: those are made for every body, also where none is read.
    __slots__ = ("_etag",)

    @property
    def etag_as_read(self) -> str:
        """The `ETag` of the answer that a client has read it from; empty: it had none."""
        return str(getattr(self, "_etag", ""))

    def note_etag(self, etag: str) -> None:
        """Keep the `ETag` of an answer."""
        object.__setattr__(self, "_etag", etag)

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """A body with the fields that `source` has too; `others` are the rest, or differ from it."""
        kind = type(source)
        for name in _shared(cls, kind) if is_dataclass(kind) else cls.model_fields:
            if name not in others:
                found = getattr(source, name, _MISSING)
                if found is not _MISSING:
                    others[name] = found
        return cls(**others)


@functools.cache
def _shared(body: type[BaseModel], kind: type) -> tuple[str, ...]:
    """The fields of a body that values of a dataclass have: asking each value for all takes longer."""
    known = {one.name for one in fields(kind)} | set(dir(kind))
    return tuple(name for name in body.model_fields if name in known)


class RequestBody(BaseModel):
    """What a client sends: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ProblemView(ResponseBody):
    """One fault in a spec: its path, what is wrong, and the value found."""

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


class ReplicaView(ResponseBody):
    """One of the control planes that serve the same PostgreSQL database."""

    name: str  # host and process number
    role: str  # `leader` or `standby`
    url: str
    version: str
    started_at: At


class InfoView(ResponseBody):
    """The control plane: its version, its process and its state."""

    version: str
    api: int = API_VERSION
    pid: int
    home: str
    started_at: At
    now: At
    #: seconds by which `now` is ahead of the machine's wall clock, which was set while jobs ran
    clock_ahead_s: float = 0.0
    num_live_jobs: int
    idle_exit_s: float | None = None
    database: str = ""  # random id of the database
    trouble: str | None = None  # why nothing can be stored at present, a full disk for example
    replicas: list[ReplicaView] = []  # that live, this one among them; empty on SQLite


class ReadinessView(ResponseBody):
    """Whether the control plane can do its work, and each check: `ok` or what is wrong.

    `leader` runs the loops until `leads_until`, on the clock of the database; a control plane on SQLite is
    its own leader and names none.
    """

    status: str
    checks: dict[str, str]
    role: str = "leader"  # or `standby`: another replica runs the loops
    leader: str | None = None
    leads_until: At | None = None


class HelloRequest(RequestBody):
    """Announces a client; an embedded server stays up for it."""

    client: ShortText = ""


class HelloResponse(ResponseBody):
    """Seconds that the server stays up without another call; None: no limit."""

    keep_alive_s: float | None
