"""Metrics of a long job: read without holding all of it, and nothing that stands out is lost."""

from __future__ import annotations

import pytest

from integration.rig import Rig
from phalanx.core.contract.records import MetricPoint
from phalanx.services.queries import metrics
from phalanx.store import telemetry

pytestmark = pytest.mark.integration
NUM_STEPS = 20_000


def test_a_long_series_is_thinned_while_it_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num, sizes = rig.submit(), []
    real = metrics.thin

    def watched(samples, max_points):
        sizes.append(len(samples))
        return real(samples, max_points)

    monkeypatch.setattr(metrics, "thin", watched)
    peaks = {7: 99.0, 12_345: -3.0}
    points = [
        MetricPoint(0, step, step, {"loss": peaks.get(step, 1.0)}) for step in range(NUM_STEPS)
    ]
    again = [MetricPoint(0, step, step, {"loss": 0.5}) for step in range(9000, 9100)]

    def store(tx):
        for start in range(0, NUM_STEPS, 1000):
            telemetry.add_points(tx, (num, 1, 0), 0, points[start : start + 1000])
        telemetry.add_points(tx, (num, 1, 1), 0, again)

    rig.store.transact(store)
    (series,) = rig.client.metrics(num, max_points=50).series
    assert max(sizes) <= metrics._MOST * 50 + 1
    assert len(series.steps) <= 50 and (series.steps[0], series.steps[-1]) == (0, NUM_STEPS - 1)
    assert {99.0, -3.0} <= set(series.values)
    (whole,) = rig.client.metrics(num, max_points=100_000).series
    assert len(whole.steps) == NUM_STEPS and whole.values[9050] == 0.5
