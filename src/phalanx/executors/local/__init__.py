"""Supervisors as processes of this machine: the embedded default."""

from phalanx.executors.local.executor import POOL, LocalExecutor

__all__ = ["POOL", "LocalExecutor"]
