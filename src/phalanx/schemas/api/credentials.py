"""Bodies about tokens and secrets. No answer has the value of a secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import Field

from phalanx.core.contract.access import Scope
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, at_of, at_or_none

_TEN_YEARS_S = 10 * 366 * 86400


class CreateTokenRequest(RequestBody):
    """A new token. Without `expires_s` it never expires."""

    name: Annotated[ShortText, Field(min_length=1, max_length=100)]
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))]
    expires_s: Annotated[float, Field(ge=60, le=_TEN_YEARS_S)] | None = None
    principal: Annotated[str, Field(max_length=140)] | None = None  # None: the caller itself


class TokenView(ResponseBody):
    """A token without its value."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: At
    expires_at: At | None = None
    principal: str = "user:admin"  # the account that it belongs to

    @classmethod
    def of_token(cls, stored: Any, scopes: Iterable[Scope], principal: str) -> Self:
        """A view of a stored token; its times are in microseconds UTC."""
        return cls(
            id=stored.id,
            name=stored.name,
            scopes=list(scopes),
            created_at=at_of(stored.created_at),
            expires_at=at_or_none(stored.expires_at),
            principal=principal,
        )


class TokenCreated(ResponseBody):
    """A token with its value, which is shown this once."""

    token: str
    view: TokenView


class LoginLink(ResponseBody):
    """The path of a link that opens the pages in a browser, once, until it expires."""

    path: str
    expires_at: At


class EndedSessions(ResponseBody):
    """The number of sessions of browsers that were ended."""

    count: int


class SetSecretRequest(RequestBody):
    """The value of a secret."""

    value: Annotated[str, Field(min_length=1, max_length=64 << 10, repr=False)]


class SecretView(ResponseBody):
    """A secret without its value. Without `project` it is one of the whole platform."""

    name: str
    project: str | None
    version: int
    set_at: At
    set_by: str

    @classmethod
    def of_secret(cls, project: str, name: str, version: int, set_at: int, set_by: str) -> Self:
        """A view of a stored secret; the time in microseconds UTC, an empty project for the whole."""
        return cls(
            name=name, project=project or None, version=version, set_at=at_of(set_at), set_by=set_by
        )


class RotatedKey(ResponseBody):
    """The number of secrets with a data key that the new master key encrypts."""

    count: int
