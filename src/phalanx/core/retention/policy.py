"""Retention periods: for how long each kind of data of ended jobs is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

_US = 1_000_000
FAILED_LOGS = "failed_logs"
"""The name of the period of the output of failed jobs, which is no kind of its own."""


class DataKind(StrEnum):
    """A kind of data with a retention period of its own."""

    LOGS = "logs"  # output of ranks, in the database and as files
    METRICS = "metrics"  # metrics in the database
    CHECKPOINTS = "checkpoints"  # all but the newest, the best and the pinned ones
    CODE = "code"  # archives of code
    JOBS = "jobs"  # the job itself: its rows, its events and everything that is left of it


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPeriods:
    """Seconds after the end of a job for which each kind of data is kept; None: without limit."""

    logs: float | None = None
    #: of the output of failed jobs, where it is longer than `logs`; None: as `logs`
    failed_logs: float | None = None
    metrics: float | None = None
    checkpoints: float | None = None
    code: float | None = None
    jobs: float | None = None

    def of(self, kind: DataKind) -> float | None:
        """The period of one kind, in seconds; None: without limit."""
        value: float | None = getattr(self, kind.value)
        return value

    def logs_of(self, *, failed: bool) -> float | None:
        """The period of the output of jobs that failed, or of the others; None: without limit."""
        if not failed or self.logs is None:
            return self.logs
        return max(self.logs, self.failed_logs or 0.0)

    def ends_at(self, kind: DataKind, ended_at: int, *, failed: bool = False) -> int | None:
        """When a kind of data of a job that ended at a time is deleted, in µs UTC; None: never.

        With the job, everything of it is deleted.
        """
        own = self.logs_of(failed=failed) if kind is DataKind.LOGS else self.of(kind)
        found = [
            ended_at + round(period * _US)
            for period in (own, self.of(DataKind.JOBS))
            if period is not None and period != FOREVER
        ]
        return min(found, default=None)


FOREVER = 1e12
"""The period, in seconds, of a project that keeps data without limit although the platform has one."""


def effective(default: RetentionPeriods, chosen: Iterable[Mapping[str, float]]) -> RetentionPeriods:
    """The periods of a project: of each kind the first that one of `chosen` names, else the default.

    `chosen` are those of the project and its ancestors, the nearest first.
    """
    levels = list(chosen)
    found: dict[str, float | None] = {}
    for one in fields(RetentionPeriods):
        period = next((level[one.name] for level in levels if one.name in level), None)
        if period is None:
            period = getattr(default, one.name)
        # Failed jobs have no period of their own where it is None, which is not the same as forever.
        is_without = period == FOREVER and one.name != FAILED_LOGS
        found[one.name] = None if is_without else period
    return RetentionPeriods(**found)


def surplus(paths: Sequence[str], newest: str | None, kept: Collection[str]) -> list[str]:
    """The checkpoints of a job that has ended which its retention period does not keep.

    `paths` are its valid checkpoints, the oldest first. The newest one stays, which is the one that a job
    would resume from where it is among them, and those of `kept`: the best, and what something needs.
    """
    last = newest if newest in paths else paths[-1] if paths else None
    return [path for path in paths if path != last and path not in kept]
