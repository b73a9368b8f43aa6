"""What the claims of an identity provider say about a user: its subject, its name here, and its groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.core.tenancy.principals import GROUP, HOME_USER, USER
from phalanx.errors import PermissionDenied

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_MAX_SUBJECT = 255
MAX_GROUPS = 500
"""A user with more groups is refused: some of them would be missing without a word."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claims name a user and its groups; `groups` None: the provider names no groups."""

    name: str = "preferred_username"
    groups: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of an identity provider. The subject stays for ever; a name may change or come again."""

    issuer: str
    subject: str
    account: str  # the account that its first login makes, such as user:ada
    groups: tuple[str, ...] | None  # None: groups are not the provider's
    is_named_by_subject: bool  # its name cannot be taken by another subject

    @property
    def key(self) -> str:
        """The stored name of the identity."""
        return identity_key(self.issuer, self.subject)


def identity_key(issuer: str, subject: str) -> str:
    """The stored name of a subject of a provider. An issuer has no blank."""
    return f"{issuer} {subject}"


def identity_of(claims: Mapping[str, object], issuer: str, names: ClaimNames) -> Identity:
    """The user that validated claims are about. Raises PermissionDenied that names the claim."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT:
        raise PermissionDenied("the identity provider names no subject in the claim `sub`")
    name = claims.get(names.name)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PermissionDenied(
            f"the claim `{names.name}` of the identity provider is not a name of an account",
            "letters, digits and ._@+- are; PHALANX__LOGIN__NAME_CLAIM names another claim",
        )
    if names.name == "email" and claims.get("email_verified") is not True:
        raise PermissionDenied("the identity provider has not verified this address of mail")
    account = f"{USER}:{name}"
    if account == HOME_USER.id:
        raise PermissionDenied(f"{account} is the user of the home, which logs in with its token")
    return Identity(
        issuer, subject, account, _groups(claims, names.groups), is_named_by_subject=name == subject
    )


def _groups(claims: Mapping[str, object], claim: str | None) -> tuple[str, ...] | None:
    if claim is None:
        return None
    found = claims.get(claim, [])
    named = [found] if isinstance(found, str) else found
    if not isinstance(named, list) or len(named) > MAX_GROUPS:
        raise PermissionDenied(
            f"the claim `{claim}` of the identity provider is no list of at most {MAX_GROUPS} groups"
        )
    wanted = {one for one in named if isinstance(one, str) and _NAME.fullmatch(one)}
    return tuple(f"{GROUP}:{one}" for one in sorted(wanted))
