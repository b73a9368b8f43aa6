"""The peers of the benchmark, each with the constants that were chosen for it on the tuning sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from phalanx.sim.model import SchedulingPolicy
from phalanx.sim.peers.catalog import POLICIES

TUNED = Path(__file__).with_name("tuned.json")


@cache
def best_constants(name: str) -> dict[str, Any]:
    """The constants of a peer that `tune.py` found best; empty: those of its paper or manual."""
    known = json.loads(TUNED.read_text()) if TUNED.exists() else {}
    found = known.get(name, {}).get("best", {})
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def tuned(name: str, has_tenants: bool = False) -> Callable[[], SchedulingPolicy]:
    """A maker of the policy with its best constants; those for tenants were chosen apart."""
    key = f"{name} with tenants" if has_tenants else name
    return partial(POLICIES[name], **best_constants(key))
