"""Search spaces of Ray Tune as Python objects: `uniform`, `loguniform`, `choice`, `randint`, `grid_search`.

The objects are known by their attributes, so that Ray is not imported. Upper bounds of integers are
exclusive in Tune, but for those of a quantized integer with a step above 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phalanx.schemas.spec.foreign_studies.reading import (
    MAX_DEPTH,
    KeyReader,
    TranslationLog,
    bounds,
    is_scalar,
)

GRID = "grid_search"


def space_from_tune(param_space: Mapping[str, Any], log: TranslationLog) -> dict[str, Any]:
    """The `space` of a study for a `param_space`; nested keys are joined by dots."""
    return _space(KeyReader(param_space, log, "param_space"), "", 0)


def _space(section: KeyReader, prefix: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in section.data:
        name, value = f"{prefix}{key}", section.take(key)
        if isinstance(value, Mapping) and set(value) == {GRID}:
            found[name] = {"values": list(value[GRID])}
        elif isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                inner = KeyReader(value, section.log, section.at(key))
                found |= _space(inner, f"{name}.", depth + 1)
            else:
                section.problem(key, "is nested too deep")
            continue
        elif is_scalar(value):
            found[name] = {"value": value}
            continue
        else:
            found[name] = _domain(section, key, value)
        section.log.mapped.append(f"{section.at(key)} -> space.{name}: {found[name]}")
    return found


def _domain(section: KeyReader, key: str, value: Any) -> Any:
    kind = type(value).__name__
    if kind == "Categorical" and hasattr(value, "categories"):
        return {"values": list(value.categories)}
    if kind not in ("Float", "Integer") or not hasattr(value, "lower"):
        known = "uniform, loguniform, quniform, randint, choice and grid_search are known"
        section.problem(key, f"{kind} cannot be translated; {known}")
        return None
    sampler = getattr(value, "sampler", None)
    step = getattr(sampler, "q", None)
    if step is not None:
        sampler = getattr(sampler, "sampler", None)
    law = type(sampler).__name__.strip("_")
    if law not in ("Uniform", "LogUniform", "NoneType"):
        section.problem(key, f"the distribution {law} cannot be translated; write bounds")
        return None
    return _bounded(section, key, value, step, law == "LogUniform")


def _bounded(section: KeyReader, key: str, value: Any, step: Any, log: bool) -> Any:
    low, high = value.lower, value.upper
    if not (math.isfinite(low) and math.isfinite(high)):
        section.problem(key, "has no bounds")
        return None
    whole = type(value).__name__ == "Integer"
    if whole:
        exclusive = step in (None, 1)
        low, high = int(low), int(high) - exclusive
        step = None if exclusive else int(step)
    if step is not None:
        if log:
            section.problem(key, "a logarithmic scale has no step here; write choices")
            return None
        low, high = math.ceil(low / step - 1e-9) * step, math.floor(high / step + 1e-9) * step
    if low > high:
        section.problem(key, "has no value between its bounds")
        return None
    kind = "int" if whole else "float"
    if log and not whole:
        return {"log": [float(low), float(high)]} if low < high else {"value": low}
    return bounds(low, high, kind, step=step, log=log)
