"""Folders as checkpoints under their public name; the code is in `train/state/folders.py`."""

from __future__ import annotations

from phalanx.train.state.folders import newest, save

__all__ = ["newest", "save"]
