"""Readers of data sets under their public name; the code is in `train/data/readers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.train.data import readers

if TYPE_CHECKING:
    from phalanx.train.data.readers import *  # noqa: F403

__all__ = readers.__all__


def __getattr__(name: str) -> Any:
    return getattr(readers, name)
