"""The peers of the benchmark, each with the constants that were chosen for it on the tuning sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from phalanx.sim.model import SchedulingPolicy
from phalanx.sim.peers.catalog import POLICIES

TUNED = Path(__file__).with_name("tuned.json")
WITH_TENANTS = " with tenants"
"""What is behind the name of a peer whose constants were chosen on a set with guarantees."""


@cache
def _known() -> Mapping[str, Any]:
    known: Mapping[str, Any] = json.loads(TUNED.read_text()) if TUNED.exists() else {}
    return known


def best_constants(name: str) -> dict[str, Any]:
    """The constants of a peer that `tune.py` found best; empty: those of its paper or manual."""
    found = _known().get(name, {}).get("best", {})
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def tuned(name: str, has_tenants: bool = False) -> Callable[[], SchedulingPolicy]:
    """A maker of the policy with its best constants; those of some peers were chosen apart for tenants."""
    apart = name + WITH_TENANTS
    key = apart if has_tenants and apart in _known() else name
    return partial(POLICIES[name], **best_constants(key))
