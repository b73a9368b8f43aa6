"""The batch size finder under its public name; the code is in `train/programs/batch_size.py`."""

from __future__ import annotations

from phalanx.train.programs.batch_size import find, knee, restored

__all__ = ["find", "knee", "restored"]
