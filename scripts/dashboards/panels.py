"""What a panel is, and the queries that most panels are made of.

Every query takes the maximum over replicas of the control plane before it adds anything up, and finds
jobs by `phalanx_job`: `job` is a label of Prometheus' own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.metrics.aliases import one_of

#: The jobs that are chosen at the top of a dashboard.
CHOSEN = 'project=~"$project", phalanx_job=~"$job"'
JOB = "{{phalanx_job}}"
RANK = "{{phalanx_job}} rank {{rank}}"

#: Where a click on a series leads, below the address of the control plane.
TO_JOBS = "/"
TO_JOB = "/?job=${__field.labels.phalanx_job}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `text` says what to do when it is red, or looks wrong."""

    title: str
    text: str
    unit: str  # of Grafana's units
    queries: tuple[tuple[str, str], ...]  # expression and legend
    kind: str = "lines"  # lines, areas, number, bars or heatmap
    red_above: float | None = None
    red_below: float | None = None
    link: str = TO_JOBS
    most: float | None = None  # the end of the scale


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: rows of panels under a title."""

    uid: str
    title: str
    text: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    of_jobs: bool = False  # has the variables project, pool, class and job
    window: str = "now-6h"
    tags: tuple[str, ...] = field(default=("phalanx",))


def jobs_of(name: str, *more: str) -> str:
    """The series of a family of the chosen jobs."""
    return f"{name}{{{', '.join((CHOSEN, *more))}}}"


def rate(name: str, window: str = "$__rate_interval") -> str:
    """The rate of a counter, of one replica."""
    return one_of(f"rate({name}[{window}])")


def increase(name: str, window: str) -> str:
    """The increase of a counter, of one replica."""
    return one_of(f"increase({name}[{window}])")


def quantiles(
    buckets: str, by: str = "", window: str = "$__rate_interval", legend: str = ""
) -> tuple[tuple[str, str], ...]:
    """The median and the 95th percentile of a histogram."""
    return tuple(
        (quantile(share, buckets, by, window), f"{legend} p{round(share * 100)}".strip())
        for share in (0.5, 0.95)
    )


def quantile(share: float, buckets: str, by: str = "", window: str = "$__rate_interval") -> str:
    """One quantile of a histogram, given by the series of its buckets."""
    kept = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({kept}) ({rate(buckets, window)}))"


def ratio(part: str, whole: str) -> str:
    """A part of a whole; without a value where the whole is 0."""
    return f"{part} / ({whole} > 0)"
