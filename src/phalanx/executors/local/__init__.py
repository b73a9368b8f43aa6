"""Supervisors as processes of this machine: the embedded default."""

from __future__ import annotations

from phalanx.executors.local.executor import POOL, LocalExecutor
from phalanx.kit.clock import Clock
from phalanx.schemas.home import HomeLayout


def build(
    home: HomeLayout,
    *,
    num_slots: int,
    clock: Clock,
    num_cpus: int | None = None,
    keep_warm: int = 0,
) -> LocalExecutor:
    """The executor of the pool `local`; the entry point `phalanx.executors: local`.

    `keep_warm` is the number of standby supervisors, 0 or 1. The first one starts at once and ends with
    this process.
    """
    executor = LocalExecutor(
        home, num_slots=num_slots, clock=clock, num_cpus=num_cpus, keep_warm=keep_warm
    )
    executor.warm_up()
    return executor


__all__ = ["POOL", "LocalExecutor", "build"]
