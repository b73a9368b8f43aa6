"""Answers of the server, back into values and the error tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from phalanx.errors import (
    PlatformError,
    Problem,
    ServerError,
    ServerUnavailable,
    SpecInvalid,
    UserError,
)
from phalanx.kit.text import replace_unencodable

M = TypeVar("M", bound=BaseModel)


def _subclasses(kind: type[PlatformError]) -> Iterator[type[PlatformError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _subclasses(below)


_BY_CODE: dict[str, type[PlatformError]] = {kind.code: kind for kind in _subclasses(PlatformError)}


def raise_for(response: httpx.Response) -> None:
    """Raise the error that an answer carries, with its own class; nothing for a success."""
    if response.is_success:
        return
    try:
        body = response.json()
        code, message = str(body["code"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"the server answered {response.status_code} to {response.request.url.path}",
            "is that the address of a Phalanx server?",
        ) from None
    hint = body.get("hint")
    kind = _BY_CODE.get(code, ServerError)
    if kind is SpecInvalid:
        problems = [
            Problem(one.get("path", ""), one.get("message", ""), one.get("value"))
            for one in body.get("problems") or [{"message": message}]
        ]
        raise SpecInvalid(problems, hint)
    error = kind(message)  # not every class takes a hint
    error.hint = None if hint is None else str(hint)
    raise error


def read(model: type[M], response: httpx.Response) -> M:
    """The answer as a model. Raises ServerError for one that only something else could give."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError:
        raise ServerError(
            f"the server gave an answer to {response.request.url.path} that is not one of Phalanx",
            "is that the address of a Phalanx server of this version?",
        ) from None


def written(body: BaseModel) -> bytes:
    """A request's body. Raises UserError naming a text that is not UTF-8, as names of files may be."""
    try:
        return body.model_dump_json().encode()
    except ValueError:
        odd = next(
            (one for one in _texts(body.model_dump()) if replace_unencodable(one) != one), None
        )
        if odd is None:
            raise
        raise UserError(f"{odd!r} is not UTF-8 and cannot be sent", "rename it") from None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.items() for text in _texts(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _texts(item))


def unreachable(url: str, error: httpx.HTTPError) -> ServerUnavailable:
    """No answer at all, or one that was cut off."""
    if isinstance(error, httpx.TimeoutException):
        return ServerUnavailable(f"the server at {url} does not answer in time", "try again")
    return ServerUnavailable(f"no server answers at {url}: {error}", "start one with `phalanx up`")
