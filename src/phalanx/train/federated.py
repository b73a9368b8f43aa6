"""Federated training under its public name; the code is in `train/programs/federated`."""

from __future__ import annotations

from phalanx.train.programs.federated import Coordinator, Site

__all__ = ["Coordinator", "Site"]
