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
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.planning_input import QueuedJob
from phalanx.core.scheduling.model.urgency import expected_s, kind_key

NOTHING = "none"
"""The value in a spec that prefers no level."""
_PART = 0.4
_MOST_S = 4 * 3600.0
_UNKNOWN_S = 600.0


def narrowest_levels(nodes: Iterable[Node]) -> dict[str, str | None]:
    """The name of the narrowest level of each pool; None where its nodes do not agree on one."""
    found: dict[str, set[str | None]] = {}
    for node in nodes:
        found.setdefault(node.pool, set()).add(node.domains[-1][0] if node.domains else None)
    return {pool: next(iter(names)) if len(names) == 1 else None for pool, names in found.items()}


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


def insistence(
    job: QueuedJob,
    wished: str | None,
    wished_s: float | None,
    narrowest: Mapping[str, str | None],
    history: History,
) -> tuple[QueuedJob, float] | None:
    """Return the job as it insists on its preferred level, and for how many seconds.

    `wished` and `wished_s` are what its owner declares. None if the job takes any place at once; a level
    that is required goes before one that is preferred. The caller checks that the level could ever hold it.
    """
    level = preferred_level(wished, job, narrowest)
    if level is None or job.required is not None:
        return None
    return replace(job, required=level), patience_s(job, history) if wished_s is None else wished_s
