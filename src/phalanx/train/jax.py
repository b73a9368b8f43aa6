"""The JAX library under its public name; the code is in `train/frameworks/jax`."""

from __future__ import annotations

from phalanx.train.frameworks.jax import init

__all__ = ["init"]
