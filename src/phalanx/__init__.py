"""Phalanx: a distributed training platform. Each package states its charter in its `__init__`."""

__version__ = "0.1.0"
