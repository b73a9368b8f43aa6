"""Probe jobs: tiny jobs of the platform itself that show whether each pool runs jobs.

They are in a project of their own, so that they are in no user's cost, and outcomes of that project are
no outcomes of users' jobs: they are in no objective and no error budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROBE_PROJECT = "phalanx-probes"
"""The project of all probe jobs."""
PROBE_LABEL = "phalanx-probe"
"""The label of a probe job with the name of its pool."""
PROBE_OWNER = "phalanx"
"""The owner of probe jobs."""
PROBE_COMMAND = ("sh", "-c", "echo probe step 1: ok 1")
"""What a probe runs by default: it makes one step, and needs nothing but a shell."""
_STEPS = "probe step {step}: ok {ok}"
_MOST_S = 300
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How pools are probed; without an interval they are not."""

    every_s: float | None = None  # interval between probes of one pool
    pools: tuple[str, ...] = ()  # those that are probed; empty: all
    run: tuple[str, ...] = PROBE_COMMAND  # what a probe runs
    image: str = ""  # image of the container; empty: that of the pool

    def includes(self, pool: str) -> bool:
        """Whether a pool is probed."""
        return self.every_s is not None and (not self.pools or pool in self.pools)


@dataclass(frozen=True, slots=True)
class PoolProbe:
    """One probe of a pool. Times are in microseconds UTC."""

    pool: str
    job: int  # its number
    state: str  # of the job
    submitted_at: int
    started_at: int | None = None  # when its rank first ran
    ended_at: int | None = None  # when it reached a terminal state
    first_step_at: int | None = None  # the time of its only step
    message: str = ""  # why it has failed, or waits

    @property
    def ok(self) -> bool | None:
        """Whether it ran to its end and made its step; None: it has not ended."""
        return None if self.ended_at is None else self.state == "succeeded"

    def seconds_until(self, at: int | None) -> float | None:
        """Seconds from the submission until then."""
        return None if at is None else max(0, at - self.submitted_at) / _US


def is_due(config: ProbeConfig, newest: PoolProbe | None, num_free: int, now: int) -> bool:
    """Whether a pool is to be probed now.

    One that is full is not: a probe takes no slot that a job waits for, and pushes no job out of one. A
    probe that has not ended is enough.
    """
    if config.every_s is None or num_free < 1:
        return False
    if newest is None:
        return True
    return newest.ended_at is not None and now >= newest.submitted_at + config.every_s * _US


def newest_of_pools(probes: Sequence[PoolProbe]) -> dict[str, tuple[PoolProbe, PoolProbe | None]]:
    """For each pool the newest probe, and the newest that has ended; `probes` begin with the newest."""
    found: dict[str, tuple[PoolProbe, PoolProbe | None]] = {}
    for one in probes:
        newest, ended = found.get(one.pool, (one, None))
        found[one.pool] = newest, ended or (one if one.ended_at is not None else None)
    return found


def probe_spec(config: ProbeConfig, pool: str) -> dict[str, Any]:
    """The spec of a probe job: one slot, the lowest priority, no restart after a failure."""
    spec: dict[str, Any] = {
        "schema": 1,
        "name": f"probe-{pool}"[:60],
        "project": PROBE_PROJECT,
        "labels": {PROBE_LABEL: pool},
        "framework": "none",
        "run": list(config.run),
        "metrics": _STEPS,
        "pool": pool,
        "priority": 0,
        "resources": {"nodes": 1, "slots_per_node": 1},
        "max_duration": f"{_MOST_S}s",
        "grace": "1s",
        "recovery": {cause: {"count": 0} for cause in ("rank_crash", "start_failed")},
    }
    return {**spec, "image": config.image} if config.image else spec
