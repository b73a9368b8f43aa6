"""Metrics as series: one value per step, thinned so that extreme values are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from phalanx.core.telemetry.instruments import is_part
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import MetricSeries, MetricsView
from phalanx.services.platform import Platform
from phalanx.services.queries.views import parts_of, ranks_of, role_of
from phalanx.store import jobs, telemetry
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob

# A series is thinned while it is read, whenever it is this many times longer than requested.
_MOST = 16
Sample = tuple[int, float, int]
"""(step, value, at)."""


def read_metrics(
    platform: Platform,
    num: int,
    *,
    names: Sequence[str] = (),
    ranks: Sequence[int] = (),
    after_step: int = -1,
    max_points: int = 1000,
    role: str | None = None,
) -> MetricsView:
    """Series by name and rank; with `role`, of its ranks only, by the rank in the gang.

    Only chunks that hold the requested metrics and ranks are read. A repeated step shows its newest
    value. Raises NotFound, and UserError for a role or a rank in it that the job does not have.
    """

    def work(tx: Tx) -> MetricsView:
        stored = jobs.load(tx, num)
        wanted = ranks_of(stored, role, ranks)
        return _read(tx, stored, tuple(names), wanted, after_step, max_points)

    return platform.store.view(work)


def _read(
    tx: Tx,
    stored: StoredJob,
    names: tuple[str, ...],
    ranks: tuple[int, ...],
    after_step: int,
    max_points: int,
) -> MetricsView:
    num, parts = stored.job.num, parts_of(stored)
    series: dict[tuple[str, int], dict[int, Sample]] = {}
    for point in telemetry.points_of(tx, num, names=names, ranks=ranks, after_step=after_step):
        for name, value in point.values.items():
            if name in names if names else not is_part(name):
                by_step = series.setdefault((name, point.rank), {})
                by_step[point.step] = (point.step, value, point.at)
                if len(by_step) > _MOST * max_points:
                    series[name, point.rank] = _thinner(by_step, max_points)
    return MetricsView(
        names=sorted(name for name in telemetry.names_of(tx, num) if not is_part(name)),
        series=[
            _series(
                (name, rank, role_of(parts, rank)[0]),
                thin([by_step[step] for step in sorted(by_step)], max_points),
            )
            for (name, rank), by_step in sorted(series.items())
        ],
    )


def _thinner(by_step: dict[int, Sample], max_points: int) -> dict[int, Sample]:
    """Thin a long series while reading, to four times the requested points, so that extremes stay."""
    kept = thin([by_step[step] for step in sorted(by_step)], 4 * max_points)
    return {sample[0]: sample for sample in kept}


def _series(key: tuple[str, int, str], samples: Sequence[Sample]) -> MetricSeries:
    name, rank, role = key
    return MetricSeries(
        name=name,
        rank=rank,
        role=role,
        steps=[step for step, _, _ in samples],
        values=[value if math.isfinite(value) else None for _, value, _ in samples],
        at=[at_of(at) for _, _, at in samples],
    )


def thin(samples: Sequence[Sample], max_points: int) -> list[Sample]:
    """At most `max_points` samples: the first, the last, and the lowest and highest of each interval.

    A value that is not finite counts as highest, so that it stays visible.
    """
    if len(samples) <= max_points or max_points < 4:
        return list(samples) if len(samples) <= max_points else list(samples[-max_points:])
    num_intervals = (max_points - 2) // 2
    inner = samples[1:-1]
    kept = [samples[0]]
    for index in range(num_intervals):
        lo = index * len(inner) // num_intervals
        hi = (index + 1) * len(inner) // num_intervals
        interval = inner[lo:hi]
        if interval:
            low, high = min(interval, key=_height), max(interval, key=_height)
            kept.extend(sorted({low[0]: low, high[0]: high}.values()))
    return [*kept, samples[-1]]


def _height(sample: Sample) -> float:
    return sample[1] if math.isfinite(sample[1]) else math.inf
