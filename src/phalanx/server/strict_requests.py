"""Request bodies as JSON in the strict sense: what every layer below can compare, store and write again.

Python's parser accepts NaN, infinite numbers, lone surrogates and very deep nesting, which databases,
encoders and recursive functions do not. They are refused here, before a model sees them.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from phalanx.errors import Problem, SpecInvalid, TooManyRequests
from phalanx.kit.text import replace_unencodable, shorten
from phalanx.schemas.wire.report_bytes import REPORTS_TYPE, decode_request
from phalanx.server import preconditions
from phalanx.server.context import Threads, in_thread, limiter

MAX_DEPTH = 32
_INT64 = 2**63
_MAX_TEXT = 200
JobNum = Annotated[int, Path(ge=1, lt=_INT64, description="Number of the job.")]
ObjectName = Annotated[str, Path(max_length=_MAX_TEXT)]
Number = Annotated[int, Query(ge=0, lt=_INT64)]
"""A sequence number, or the number of an attempt, generation or request."""


def _supervisor(
    job: Number, attempt: Number, node_rank: Number, incarnation: Number = 0
) -> tuple[int, int, int, int]:
    return job, attempt, node_rank, incarnation


SupervisorKey = Annotated[tuple[int, int, int, int], Depends(_supervisor)]
"""The supervisor that a call says that it comes from: job, attempt, node rank, incarnation."""
SearchText = Annotated[str | None, Query(max_length=_MAX_TEXT)]
Texts = Annotated[list[Annotated[str, Query(max_length=_MAX_TEXT)]] | None, Query(max_length=50)]
Ranks = Annotated[list[Annotated[int, Query(ge=0, lt=2**31)]] | None, Query(max_length=1000)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="A text that names this request: repeated with the same key, it takes effect once.",
    ),
]
Wait = Annotated[float, Query(ge=0, le=3600, allow_inf_nan=False)]
"""Seconds of a long poll; the server's limit is in its settings."""
_MAX_WAITING_WRITES = 64
# A body of this size is parsed in a thread.
_LARGE_BYTES = 64 << 10
# The bytes of a body by what matters for `_is_suspect`: digits, the point, the sign of an exponent.
_SHAPES = b"".join(
    b"0" if one in b"0123456789" else b"e" if one in b"eE" else b"." if one in b"." else b" "
    for one in range(256)
)
_DIGITS_RUN = re.compile(rb"0+")
_LONG, _EXPONENT = b"0" * 19, b"e000"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class StrictRoute(APIRoute):
    """A route with a JSON body that is read by `read_json`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **of_fastapi: Any) -> None:
        reads = set(of_fastapi.get("methods") or ("GET",)) <= {"GET", "HEAD"}
        if not reads and not inspect.iscoroutinefunction(endpoint):
            endpoint = _writing(endpoint)
        super().__init__(path, endpoint, **of_fastapi)

    @property
    def request_class(self) -> type[_StrictRequest]:
        """What reads the body."""
        return _StrictRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with the body read before it."""
        handler = super().get_route_handler()
        takes_body = self.body_field is not None
        methods = frozenset(self.methods or ())
        kind = preconditions.resource_of(methods, self.path)
        conditional = preconditions.make_change
        if methods <= preconditions.READS:
            conditional = preconditions.answer_read

        async def strict(request: Request) -> Response:
            if takes_body:
                request = self.request_class(request.scope, request.receive)
                await request.read()
            if kind is None:
                return await handler(request)
            return await conditional(kind, request, handler)

        return strict


def _writing(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """An endpoint that runs in the threads for writes. Raises TooManyRequests where too many wait."""

    @functools.wraps(endpoint)
    async def in_write_thread(**values: Any) -> Any:
        if limiter(Threads.WRITES).statistics().tasks_waiting >= _MAX_WAITING_WRITES:
            raise TooManyRequests("too many requests wait to change something", "try again")
        return await in_thread(functools.partial(endpoint, **values), pool=Threads.WRITES)

    return in_write_thread


class _StrictRequest(Request):
    """A request with a strict `json`."""

    async def read(self) -> None:
        """Parse the body. Raises SpecInvalid."""
        body = await self.body()
        large = len(body) > _LARGE_BYTES
        self._value = await in_thread(self.parsed, body) if large else self.parsed(body)

    def parsed(self, body: bytes) -> Any:
        """The value of a body. Raises SpecInvalid."""
        return read_json(body)

    async def json(self) -> Any:
        """The parsed body."""
        return self._value


class _SupervisorRequest(_StrictRequest):
    """Text that cannot be stored is repaired: a report that is refused would be sent again without end."""

    def parsed(self, body: bytes) -> Any:
        """The value of a body in JSON, or in bytes as `report_bytes` describes. Raises SpecInvalid."""
        # Not by `self.headers`, which would be kept as they are now.
        if (b"content-type", REPORTS_TYPE.encode()) not in self.scope["headers"]:
            return read_json(body, repair=True)
        # The framework parses what has the type of JSON.
        self.scope["headers"] = [
            (name, b"application/json" if name == b"content-type" else value)
            for name, value in self.scope["headers"]
        ]
        try:
            return decode_request(body, partial(read_json, repair=True))
        except ValueError as error:
            raise _refused(str(error)) from None


class SupervisorRoute(StrictRoute):
    """A route with reports of a supervisor."""

    @property
    def request_class(self) -> type[_StrictRequest]:
        """What reads the body."""
        return _SupervisorRequest


def read_json(body: bytes, repair: bool = False) -> Any:
    """Parse a body. Raises SpecInvalid that says what no JSON document may hold here.

    With `repair`, text that cannot be stored is replaced, as `EncodableText` does.
    """
    if not body:
        raise _refused("is required")
    suspect = not repair or _is_suspect(body)
    try:
        value = json.loads(body.decode(), parse_constant=_constant)
        if repair and suspect:
            value = _repaired(value)
    except UnicodeDecodeError as error:
        raise _refused(f"is not UTF-8: see byte {error.start}") from None
    except RecursionError:
        raise _refused(f"is nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise _refused(f"is not valid JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise _refused(str(error) if isinstance(error, _Constant) else _DIGITS) from None
    fault = next(_faults(value), None) if suspect else None
    if fault is not None:
        raise SpecInvalid([Problem(shorten(fault[0]) or "body", fault[1])])
    return value


def _is_suspect(body: bytes) -> bool:
    """Whether a body may hold an escape of unstorable text, or a number that is too large.

    Searches for fixed bytes: a regular expression takes longer than to parse the body. Digits after a point
    do not count. Metrics have many of them, and they make no number large.
    """
    shapes = body.translate(_SHAPES, b"+")
    at = shapes.find(_LONG)
    while at >= 0:
        if at == 0 or shapes[at - 1] != ord("."):
            return True
        run = _DIGITS_RUN.match(shapes, at)
        at = shapes.find(_LONG, run.end() if run else at + 1)
    return _EXPONENT in shapes or b"\\u" in body


class _Constant(ValueError):
    """A number that JSON does not have."""


_DIGITS = "holds a number with too many digits"


def _constant(name: str) -> float:
    raise _Constant(f"holds {name}, which is not a JSON number")


def _refused(message: str) -> SpecInvalid:
    return SpecInvalid([Problem("body", message)])


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return replace_unencodable(value)
    if isinstance(value, list):
        return [_repaired(one) for one in value]
    if isinstance(value, dict):
        return {replace_unencodable(key): _repaired(one) for key, one in value.items()}
    return value


def _faults(value: Any) -> Iterator[tuple[str, str]]:
    """Path and fault of what cannot be stored, without recursion."""
    left: list[tuple[Any, tuple[str, ...]]] = [(value, ())]
    while left:
        one, path = left.pop()
        if not isinstance(one, dict | list):
            if (fault := _fault(one)) is not None:
                yield ".".join(path), fault
        elif len(path) >= MAX_DEPTH:
            yield ".".join(path[:4]), f"is nested deeper than {MAX_DEPTH} levels"
        elif isinstance(one, list):
            left.extend((item, (*path, str(index))) for index, item in enumerate(one))
        else:
            if any(_UNSTORABLE.search(key) for key in one):
                yield ".".join(path), "has a key with a NUL or a lone surrogate"
            left.extend((item, (*path, key)) for key, item in one.items())


def _fault(value: object) -> str | None:
    """What is wrong with a text or a number."""
    if isinstance(value, str) and _UNSTORABLE.search(value):
        return "holds a NUL or a lone surrogate, which is not valid text"
    if isinstance(value, float) and not math.isfinite(value):
        return "is larger than a number can be"
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return "is larger than a whole number can be (64 bits)"
    return None
