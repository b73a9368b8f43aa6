"""Preference: the level of the topology that a gang should lie inside, and for how long it insists.

Unless its owner says otherwise a gang of several nodes insists on the narrowest level of its pools,
if that could ever hold it. It does so for two fifths of its expected run time, and four hours at
most: a scattered placement costs during the whole run, a wait costs once and is usually shorter
than allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from phalanx.core.gang.placement import Node
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster, narrowest_levels
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.model.urgency import expected_s, kind_key

NOTHING = "none"
"""The value in a spec that prefers no level."""
_PART = 0.4
_MOST_S = 4 * 3600.0
_UNKNOWN_S = 600.0


def preferred_level(
    wished: str | None, job: QueuedJob, narrowest: Mapping[str, str | None]
) -> str | None:
    """Return the level that this job insists on at first; None: any free slots."""
    if wished is not None:
        return None if wished == NOTHING else wished
    if job.required is not None or (job.shape.nodes == 1 and not job.roles):
        return None
    names = {narrowest.get(pool) for pool in job.pools or narrowest}
    return next(iter(names)) if len(names) == 1 else None


def patience_s(job: QueuedJob, history: History) -> float:
    """Return how long it insists by default, seconds."""
    lasts_s = expected_s(job, kind_key(job), history, 0.5)
    return _UNKNOWN_S if lasts_s is None else min(_PART * lasts_s, _MOST_S)


class Preferences:
    """The preferred levels of jobs on one set of nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        nodes = tuple(nodes)
        self._narrowest = narrowest_levels(nodes)
        self._empty = EmptyCluster(nodes)

    def apply(
        self, job: QueuedJob, wished: str | None, wished_s: float | None, history: History
    ) -> QueuedJob:
        """Return the job as it enters the queue: for a while, its preferred level is required.

        `wished` and `wished_s` are what its owner declares. The job is unchanged if it takes any place at
        once, if it requires a level, or if its preferred level could never hold it.
        """
        job = self._split(job)
        level = preferred_level(wished, job, self._narrowest)
        if level is None or job.required is not None:
            return job
        wait_s = patience_s(job, history) if wished_s is None else wished_s
        until = job.since + int(wait_s * US)
        insisting = replace(job, required=level, required_until=until)
        return insisting if self._empty.can_hold(insisting) else job

    def _split(self, job: QueuedJob) -> QueuedJob:
        """Return a job that may be split with the shapes that the nodes could ever hold.

        The fewest nodes go first; one with intensive communication takes no others.
        """
        if not job.splits:
            return job
        shapes = [replace(job, shape=one, splits=()) for one in (job.shape, *job.splits)]
        possible = [one.shape for one in shapes if self._empty.can_hold(one)]
        if not possible:
            return job
        others = () if job.intensive else tuple(possible[1:])
        return replace(job, shape=possible[0], splits=others)
