"""Scopes of tokens: what a bearer token may do at the API."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Scope(StrEnum):
    """One right. A scope includes those that its users need: `submit` reads, `read` reads metrics."""

    METRICS = "metrics"
    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"


MEANING = {
    Scope.METRICS: "scrape `/metrics`",
    Scope.READ: "read jobs, logs, metrics, pools, nodes and projects",
    Scope.SUBMIT: "submit, stop, pause and resume jobs, and upload code",
    Scope.ADMIN: "everything: pools, projects, nodes, tokens",
}
_INCLUDES = {
    Scope.METRICS: frozenset({Scope.METRICS}),
    Scope.READ: frozenset({Scope.METRICS, Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.METRICS, Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: frozenset(Scope),
}


def covers(granted: Iterable[Scope], needed: Scope) -> bool:
    """Whether one of the granted scopes includes the needed one."""
    return any(needed in _INCLUDES[one] for one in granted)


def known_scopes(values: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes among stored values: one of a later release grants nothing here."""
    names = {scope.value for scope in Scope}
    return tuple(Scope(value) for value in values if value in names)
