"""Submit probe jobs that are due, and tell what the newest ones of each pool have shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from phalanx.core.probes import (
    PROBE_LABEL,
    PROBE_OWNER,
    PROBE_PROJECT,
    PoolProbe,
    ProbeConfig,
    is_due,
    newest_of_pools,
    probe_spec,
)
from phalanx.errors import SpecInvalid
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.health.alerts import ProbeView
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.services.batches.submit import submit_batch
from phalanx.services.platform import Platform
from phalanx.services.queries.feed import newest_points
from phalanx.services.resources.inventory import list_pools
from phalanx.store import jobs
from phalanx.store.jobs import StoredJob

_LOG = logging.getLogger(__name__)
_PER_POOL = 3  # one that has not ended, and the newest that has, also after a change of the pools
_MOST_POOLS = 200

Newest = dict[str, tuple[PoolProbe, PoolProbe | None]]
"""By pool: the newest probe, and the newest that has ended."""


def probes_step(platform: Platform, config: ProbeConfig, now: int) -> None:
    """Submit the probes that are due."""
    if config.every_s is None:
        return
    newest = newest_probes(platform)
    for pool in list_pools(platform)[:_MOST_POOLS]:
        last, _ = newest.get(pool.name, (None, None))
        if config.includes(pool.name) and is_due(config, last, pool.num_free, now):
            request = SubmitRequest(
                spec=probe_spec(config, pool.name), owner=PROBE_OWNER, kind="submit"
            )
            try:
                submit_batch(platform, [request], now)
            except SpecInvalid as error:  # the settings, or the limits of the project
                _LOG.warning("pool %s is not probed: %s", pool.name, error)


def newest_probes(platform: Platform) -> Newest:
    """The newest probes of each pool that has had one."""
    most = _PER_POOL * _MOST_POOLS
    found = platform.store.view(lambda tx: jobs.newest_of_project(tx, PROBE_PROJECT, most))
    return newest_of_pools([_probe(one) for one in found])


def _probe(one: StoredJob) -> PoolProbe:
    job = one.job
    waits = one.pending_reason or job.reason
    return PoolProbe(
        pool=one.facts.labels.get(PROBE_LABEL, ""),
        job=job.num,
        state=job.state.value,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        message="" if job.state.value == "succeeded" else waits.message,
    )


def first_step_at(platform: Platform, probe: PoolProbe) -> int | None:
    """The time of the step of a probe; None: it has made none."""
    return min((point.at for point in newest_points(platform, probe.job)), default=None)


def list_probes(platform: Platform, config: ProbeConfig) -> list[ProbeView]:
    """The newest probe of each pool that is probed, and of those that were."""
    return list(_views(platform, config, newest_probes(platform)))


def _views(platform: Platform, config: ProbeConfig, newest: Newest) -> Iterator[ProbeView]:
    pools = {one.name for one in list_pools(platform) if config.includes(one.name)}
    for pool in sorted(pools | set(newest)):
        last, ended = newest.get(pool, (None, None))
        shown = last or ended
        if shown is None:
            yield ProbeView(pool=pool, probed=True)
            continue
        step_at = first_step_at(platform, shown)
        yield ProbeView(
            pool=pool,
            probed=pool in pools,
            ok=None if ended is None else ended.ok,
            job=job_label(shown.job),
            state=shown.state,
            submitted_at=at_of(shown.submitted_at),
            ended_at=at_or_none(shown.ended_at),
            start_s=shown.seconds_until(shown.started_at),
            first_step_s=shown.seconds_until(step_at),
            end_s=shown.seconds_until(shown.ended_at),
            message=shown.message,
        )
