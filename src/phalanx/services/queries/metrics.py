"""Metrics as curves: of one job, and of many jobs side by side. Long ones are read from roll-ups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.core.curves import Reduce
from phalanx.core.telemetry.instruments import is_part
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import MetricSeries, MetricsView
from phalanx.schemas.wire.curve_bytes import encode_curves
from phalanx.services.platform import Platform
from phalanx.services.queries.views import parts_of, ranks_of, role_of
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.metrics import arrivals

if TYPE_CHECKING:
    from phalanx.core.curves.columns import Samples
    from phalanx.store.metrics.curves import Curve

# A curve of one job with up to this many samples is thinned from all of them, not from its roll-ups.
_EXACT_UP_TO = 50_000
_MANY_NAMES = 500


def read_metrics(  # noqa: PLR0913
    platform: Platform,
    num: int,
    *,
    names: Sequence[str] = (),
    ranks: Sequence[int] = (),
    after_step: int = -1,
    to_step: int | None = None,
    max_points: int = 1000,
    role: str | None = None,
) -> MetricsView:
    """Series by name and rank; with `role`, of its ranks only, by the rank in the gang.

    A repeated step shows its newest value. A series that is longer than `max_points` says so, and shows
    the first and the last sample, and the lowest and the highest of each interval. Raises NotFound, and
    UserError for a role or a rank in it that the job does not have.
    """

    from phalanx.store.metrics.curves import LAST_STEP, CurveQuery, curves

    def work(tx: Tx) -> MetricsView:
        stored = jobs.load(tx, num)
        known = sorted(name for name in arrivals.names_of(tx, num) if not is_part(name))
        wanted = tuple(dict.fromkeys(names)) or tuple(known[:_MANY_NAMES])
        query = CurveQuery(
            wanted if names or len(known) <= _MANY_NAMES else (),
            ranks_of(stored, role, ranks),
            after_step + 1,
            LAST_STEP if to_step is None else to_step,
            max_points,
            _EXACT_UP_TO,
        )
        found = curves(tx, [num], query) if wanted else []
        parts = parts_of(stored)
        shown = [one for one in found if names or not is_part(one.name)]
        return MetricsView(
            names=known, series=[_series(one, role_of(parts, one.rank)[0]) for one in shown]
        )

    return platform.store.view(work)


def _series(curve: Curve, role: str) -> MetricSeries:
    return MetricSeries(
        name=curve.name,
        rank=curve.rank,
        role=role,
        steps=curve.samples.steps.tolist(),
        values=_values(curve.samples),
        at=[at_of(at) for at in curve.samples.times.tolist()],
        count=curve.count,
        downsampled=curve.downsampled,
    )


def _values(samples: Samples) -> list[float | None]:
    """The values for JSON, which has no number that is not finite."""
    import numpy as np

    values: list[float | None] = samples.values.tolist()
    for place in np.flatnonzero(~np.isfinite(samples.values)).tolist():
        values[place] = None
    return values


def compare_metrics(  # noqa: PLR0913
    platform: Platform,
    nums: Sequence[int],
    *,
    names: Sequence[str],
    ranks: Sequence[int] = (0,),
    after_step: int = -1,
    to_step: int | None = None,
    max_points: int = 1000,
    reduce: Reduce = "extremes",
    projects: Sequence[str] | None = None,
) -> list[Curve]:
    """The curves of many jobs, of those that exist in these projects; None: in all."""
    from phalanx.store.metrics.curves import LAST_STEP, CurveQuery, curves

    query = CurveQuery(
        tuple(dict.fromkeys(names)),
        tuple(ranks),
        after_step + 1,
        LAST_STEP if to_step is None else to_step,
        max_points,
        reduce=reduce,
    )

    def work(tx: Tx) -> list[Curve]:
        return curves(tx, jobs.among(tx, sorted(set(nums)), projects), query)

    return platform.store.view(work)


def curves_json(found: Sequence[Curve]) -> str:
    """A `CurvesView` as JSON, in one step: by way of models it takes several times as long."""
    series = [
        _head(one) | {"steps": one.samples.steps.tolist(), "values": _values(one.samples)}
        for one in found
    ]
    return json.dumps({"series": series}, separators=(",", ":"), allow_nan=False)


def curves_bytes(found: Sequence[Curve]) -> bytes:
    """Curves as `curve_bytes` describes them."""
    columns = []
    for one in found:
        columns += [one.samples.steps.astype("<f8").tobytes()]
        columns += [one.samples.values.astype("<f8").tobytes()]
    return encode_curves([_head(one) | {"points": len(one.samples)} for one in found], columns)


def _head(curve: Curve) -> dict[str, Any]:
    return {
        "job": curve.job,
        "name": curve.name,
        "rank": curve.rank,
        "count": curve.count,
        "downsampled": curve.downsampled,
    }
