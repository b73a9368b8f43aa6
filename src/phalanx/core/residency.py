"""Data residency: where a job may run and keep data, by the label `residency` of pools and stores.

A rule is a tuple of allowed values, such as `("eu", "ch")`. The rules of a job are its own, that of its
project and those of the projects above; a place must satisfy all of them. A place without the label
satisfies no rule.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

LABEL = "residency"
"""The label of pools and nodes that names where they are."""


@dataclass(frozen=True, slots=True)
class ResidencyRule:
    """The values that one source allows; `source` is in words: `project lab`, `the job`."""

    source: str
    allowed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.source} allows {', '.join(self.allowed)}"


@dataclass(frozen=True, slots=True)
class DataStore:
    """A place of data outside the nodes: everything below `url`, a URL or an absolute path."""

    url: str
    residency: str


@dataclass(frozen=True, slots=True)
class OutsideStore:
    """A URL or path of a job that no rule allows: `path` is its field in the spec."""

    path: str
    url: str
    message: str


def residency_of(labels: Iterable[tuple[str, str]]) -> str:
    """The value of the label of a node; empty: it has none."""
    return dict(labels).get(LABEL, "")


def allowed_by(rules: Iterable[ResidencyRule]) -> tuple[str, ...] | None:
    """The values that all rules allow, sorted; None where there is no rule, empty where none is left."""
    found: set[str] | None = None
    for rule in rules:
        found = set(rule.allowed) if found is None else found & set(rule.allowed)
    return None if found is None else tuple(sorted(found))


def permits(allowed: tuple[str, ...] | None, labels: Iterable[tuple[str, str]]) -> bool:
    """Whether a job with these allowed values may use a node with these labels."""
    return allowed is None or residency_of(labels) in allowed


def in_words(rules: Sequence[ResidencyRule]) -> str:
    """All rules in one phrase."""
    return "; ".join(str(rule) for rule in rules)


def store_of(url: str, stores: Iterable[DataStore]) -> DataStore | None:
    """The declared store that a URL or path lies in, the longest where several do; None: in none.

    A URL with `..` lies in none: what it names depends on the client.
    """
    here = _parts(url)
    if here is None:
        return None
    best: DataStore | None = None
    length = -1
    for store in stores:
        there = _parts(store.url)
        if there is not None and here[: len(there)] == there and len(there) > length:
            best, length = store, len(there)
    return best


def outside(
    urls: Mapping[str, str], stores: Sequence[DataStore], rules: Sequence[ResidencyRule]
) -> list[OutsideStore]:
    """The URLs of a job, by the field that names them, that the rules do not allow.

    An absolute path in no declared store is a file of the node, and lies where the node is.
    """
    allowed = allowed_by(rules)
    if allowed is None:
        return []
    found = []
    for path, url in urls.items():
        store = store_of(url, stores)
        if store is None and (url.startswith("/") or url.lower().startswith("file://")):
            continue
        if store is None:
            said = f"lies in no store with a residency; {in_words(rules)}"
            said += ": declare its store under `stores` of the project file"
            found.append(OutsideStore(path, url, said))
        elif store.residency not in allowed:
            said = f"lies in store {store.url}, residency {store.residency}; {in_words(rules)}"
            found.append(OutsideStore(path, url, said))
    return found


def _parts(url: str) -> tuple[str, ...] | None:
    """The parts of a URL or of an absolute path, to compare; None for a URL with `..`."""
    scheme, separator, rest = url.partition("://")
    if scheme.lower() == "file":
        url, separator = rest, ""
    if not separator:
        return ("", *posixpath.normpath(url).strip("/").split("/"))
    authority, _, path = rest.partition("/")
    parts = [one for one in path.split("/") if one not in ("", ".")]
    if any(unquote(one) in ("..", ".") or "\\" in one for one in parts):
        return None
    return (scheme.lower(), authority.lower(), *parts)
