"""Committed checkpoints with one small file, for tests that read them."""

from __future__ import annotations

from pathlib import Path

from phalanx.checkpoint import CheckpointWriter
from phalanx.core.training.checkpoints import Manifest, Position, checkpoint_name


def commit(folder: Path, step: int) -> Path:
    """Commit a checkpoint of a step below a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = CheckpointWriter(folder, checkpoint_name(step, "0a1b2c3d"))
    draft.add_bytes("state.bin", b"weights" * step)
    return draft.commit(
        Manifest(
            name=draft.name,
            step=step,
            position=Position(),
            attempt=1,
            generation=0,
            commit=step,
            parent=None,
            world_size=1,
            reference_world=1,
            global_batch=None,
            created_at=step,
            why="interval",
            files=draft.files,
        )
    )
