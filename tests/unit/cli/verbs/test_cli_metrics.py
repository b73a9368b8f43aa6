"""The sentence under the table of metrics."""

import pytest

from phalanx.cli.verbs.metrics import lost_time
from phalanx.schemas.api.telemetry import MetricSeries

pytestmark = pytest.mark.unit


def series(name: str, values: list[float | None], rank: int = 0) -> MetricSeries:
    return MetricSeries(name=name, rank=rank, steps=list(range(len(values))), values=values)


def test_lost_time_is_said_for_the_ranks_that_lose_it() -> None:
    found = [
        series("loss", [0.9, 0.8]),
        series("data_wait_fraction", [0.4, None, 0.2], rank=0),
        series("data_wait_fraction", [0.05, 0.1], rank=1),
        series("data_wait_fraction", [None], rank=2),
    ]
    assert lost_time(found) == ["rank 0 spends 30% of its time waiting for data"]
