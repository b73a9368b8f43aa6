"""The registry of frameworks with those of installed packages: entry point group `phalanx.frameworks`.

An entry point is a `FrameworkAdapter`. The group is read once, and only when a name is asked for that does
not come with Phalanx: reading it takes tens of milliseconds.
"""

from __future__ import annotations

import functools

import phalanx.core.frameworks.builtin  # noqa: F401 - registers the frameworks of Phalanx
from phalanx.core.frameworks.adapter import REGISTRY, FrameworkAdapter, register
from phalanx.errors import NotFound

GROUP = "phalanx.frameworks"


@functools.cache
def _load() -> None:
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        register(entry.load())


def framework(name: str) -> FrameworkAdapter:
    """The adapter of a framework. Raises NotFound."""
    if name not in REGISTRY:
        _load()
    try:
        return REGISTRY[name]
    except KeyError:
        raise NotFound(f"no framework {name} is installed, only {', '.join(REGISTRY)}") from None


def names() -> tuple[str, ...]:
    """All frameworks, those of installed packages too."""
    _load()
    return tuple(REGISTRY)
