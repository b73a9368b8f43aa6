"""What each route needs: its permission, and where the project of a request is found.

A route says it in one argument of its decorator: `openapi_extra=needs(Permission.JOBS_READ, Of.JOB)`. A
control plane with a route that does not say it does not start. A path that is no route needs
`platform.change`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute

from phalanx.core.tenancy.roles import Permission
from phalanx.errors import ServerError

KEY = "x-phalanx-access"
"""The name under which the OpenAPI document has what a route needs."""


class Of(StrEnum):
    """Where the project of a request is found, which decides where its caller needs the permission."""

    WHOLE = "whole"  # no project: the caller needs the permission for the whole platform
    ANY = "any"  # in one project at least; the route leaves out what the caller may not see
    BODY = "body"  # as ANY; the route calls `Caller.require` for the project that its body names
    JOB = "job"  # the project of the job `num` of the path
    STUDY = "study"  # the project of the study `num` of the path
    PROJECT = "project"  # the project `name` of the path
    OPEN = "open"  # needs no caller
    ATTEMPT = "attempt"  # needs the token of an attempt, which its service checks


@dataclass(frozen=True, slots=True)
class Access:
    """What one route needs. `session`: the session of a browser is enough, for pages.

    `audited`: a read has a row in the audit log, as every change has.
    """

    permission: Permission
    of: Of
    session: bool = False
    audited: bool = False

    @property
    def needs_caller(self) -> bool:
        """Whether a request needs a token of a principal."""
        return self.of not in (Of.OPEN, Of.ATTEMPT)


UNKNOWN = Access(Permission.PLATFORM_CHANGE, Of.WHOLE)
"""What a path needs that is no route."""


def needs(
    permission: Permission, of: Of, *, session: bool = False, audited: bool = False
) -> dict[str, Any]:
    """The declaration of a route, for the argument `openapi_extra` of its decorator."""
    declared: dict[str, Any] = {"permission": permission.value, "of": of.value}
    flags = {"session": session, "audited": audited}
    return {KEY: declared | {name: True for name, one in flags.items() if one}}


OPEN = needs(Permission.SELF, Of.OPEN)
"""The declaration of a route that needs no token."""
ATTEMPT = needs(Permission.SELF, Of.ATTEMPT)
"""The declaration of a route for supervisors."""
ATTEMPT_AUDITED = needs(Permission.SELF, Of.ATTEMPT, audited=True)
"""The same, for a route with calls that are in the audit log."""


def bearer_token(headers: Mapping[str, str]) -> str:
    """The token that an attempt shows; empty: none."""
    return headers.get("authorization", "").removeprefix("Bearer ").strip()


# Routes of the framework, which take no declaration.
_BUILT_IN = {"/openapi.json": Access(Permission.SELF, Of.OPEN)}
_FIELD = re.compile(r"\{(\w+)(?::\w+)?\}")


@dataclass(frozen=True, slots=True)
class Matched:
    """What a request needs, and the variables of its path."""

    access: Access
    values: dict[str, str]
    route: str = ""  # the path with names of its variables; empty for no route


class AccessTable:
    """The declarations of all routes of an application. Raises ServerError for a route without one."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.of_route: dict[tuple[str, str], Access] = {}
        self._literal: dict[str, dict[str, Access]] = defaultdict(dict)
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Access]]] = {}
        for route in iter_route_contexts(list(routes)):
            path = str(route.path)
            access = _declared(route, path)
            for method in sorted(route.methods or ()):
                self.of_route[method, path] = access
                if _FIELD.search(path):
                    pattern = re.compile(_FIELD.sub(r"(?P<\1>[^/]+)", path))
                    self._patterns.setdefault(path, (pattern, {}))[1][method] = access
                else:
                    self._literal[path][method] = access

    def find(self, method: str, path: str) -> Matched:
        """What a request needs; UNKNOWN where no route is declared for it."""
        methods = self._literal.get(path)
        if methods is not None:
            return Matched(_of_method(methods, method), {}, path)
        for route, (pattern, methods) in self._patterns.items():
            found = pattern.fullmatch(path)
            if found is not None and (method in methods or _is_open(methods)):
                return Matched(_of_method(methods, method), found.groupdict(), route)
        return Matched(UNKNOWN, {})


def _of_method(methods: dict[str, Access], method: str) -> Access:
    """What a method of a path needs. An open path answers other methods as it likes."""
    if method not in methods and _is_open(methods):
        return next(iter(methods.values()))
    return methods.get(method, UNKNOWN)


def _is_open(methods: dict[str, Access]) -> bool:
    return not any(one.needs_caller for one in methods.values())


def _declared(route: Any, path: str) -> Access:
    extra = getattr(route, "openapi_extra", None) or {}
    if KEY in extra:
        said = extra[KEY]
        return Access(
            Permission(said["permission"]),
            Of(said["of"]),
            session=bool(said.get("session")),
            audited=bool(said.get("audited")),
        )
    if path in _BUILT_IN:
        return _BUILT_IN[path]
    methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
    raise ServerError(
        f"the route {methods} {path} does not say what it needs",
        "add openapi_extra=needs(Permission.…, Of.…) of server/access.py to its decorator",
    )
