"""Manifests of checkpoints with the values that a test does not care about."""

from __future__ import annotations

from typing import Any

from phalanx.core.training.checkpoints import Manifest, Position, checkpoint_name


def manifest_of(step: int, **fields: Any) -> Manifest:
    """The manifest of a checkpoint without files, committed by one rank; `fields` replace its values.

    Its commit number and its time are the step, its name ends in the commit number.
    """
    commit = fields.get("commit", step)
    values: dict[str, Any] = {
        "name": checkpoint_name(step, f"{commit:08x}"),
        "step": step,
        "position": Position(),
        "attempt": 1,
        "generation": 0,
        "commit": commit,
        "parent": None,
        "world_size": 1,
        "reference_world": 1,
        "global_batch": None,
        "created_at": commit,
        "why": "every",
        "files": (),
    }
    return Manifest(**{**values, **fields})
