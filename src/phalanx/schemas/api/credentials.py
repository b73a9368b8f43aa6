"""Bodies about tokens and secrets. No answer has the value of a secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from phalanx.core.contract.access import Scope
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, at_of, at_or_none

_TEN_YEARS_S = 10 * 366 * 86400
_Value = Annotated[str, Field(min_length=1, max_length=64 << 10)]


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
    """The value of a secret, or a reference to it in a secret manager: one of the two."""

    value: Annotated[_Value | None, Field(repr=False)] = None
    source: Annotated[str, Field(min_length=1, max_length=900)] | None = None  # MANAGER:PATH#KEY

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.value is None) == (self.source is None):
            raise ValueError("give either the value or its source")
        return self


class SecretView(ResponseBody):
    """A secret without its value. Without `project` it is one of the whole platform.

    `source` is the reference to its value in a secret manager; None: the value is stored, encrypted.
    """

    name: str
    project: str | None
    version: int
    set_at: At
    set_by: str
    source: str | None = None

    @classmethod
    def of_secret(
        cls, project: str, name: str, version: int, set_at: int, set_by: str, source: str = ""
    ) -> Self:
        """A view of a stored secret; the time in microseconds UTC, an empty project for the whole."""
        return cls(
            name=name,
            project=project or None,
            version=version,
            set_at=at_of(set_at),
            set_by=set_by,
            source=source or None,
        )


class RotatedKey(ResponseBody):
    """The number of secrets with a data key that the new master key encrypts."""

    count: int
