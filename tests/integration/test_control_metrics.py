"""Metrics of a long job: read from roll-ups, and nothing that stands out is lost."""

from __future__ import annotations

import pytest

from integration.rig import URL, Rig
from phalanx.core.contract.access import Scope
from phalanx.core.contract.records import MetricPoint
from phalanx.core.curves import chunks
from phalanx.sdk import PhalanxClient
from phalanx.services.metrics.folding import FoldingProgress, metrics_step
from phalanx.store.metrics import arrivals, folding, series

pytestmark = pytest.mark.integration
NUM_STEPS = 20_000
PEAKS = {7: 99.0, 12_345: -3.0}


def fill(rig: Rig, num: int) -> None:
    """Steps 0 to 19,999, then a restart that reports a hundred of them again."""
    points = [
        MetricPoint(0, step, step, {"loss": PEAKS.get(step, 1.0)}) for step in range(NUM_STEPS)
    ]
    again = [MetricPoint(0, step, step, {"loss": 0.5}) for step in range(9000, 9100)]

    def store(tx):
        for start in range(0, NUM_STEPS, 1000):
            arrivals.add_points(tx, (num, 1, 0), points[start : start + 1000])
        arrivals.add_points(tx, (num, 1, 1), again)

    rig.store.transact(store)


@pytest.mark.parametrize("folded", [False, True])
def test_a_long_series_is_thinned_and_a_part_of_it_is_shown_closely(rig: Rig, folded: bool) -> None:
    num = rig.submit()
    fill(rig, num)
    if folded:
        assert not metrics_step(rig.platform, FoldingProgress(), rig.clock.now())
    (one,) = rig.client.metrics(num, max_points=50).series
    assert len(one.steps) <= 50 and (one.steps[0], one.steps[-1]) == (0, NUM_STEPS - 1)
    assert {99.0, -3.0} <= set(one.values)
    assert one.downsampled and one.count == NUM_STEPS
    (part,) = rig.client.metrics(num, after_step=8999, to_step=9199).series
    assert part.steps == list(range(9000, 9200)) and not part.downsampled
    assert part.values == [0.5] * 100 + [1.0] * 100
    (whole,) = rig.client.metrics(num, max_points=100_000).series
    assert len(whole.steps) == NUM_STEPS and whole.values[9050] == 0.5
    assert not whole.downsampled


def test_a_curve_of_a_folded_job_is_read_without_its_chunks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = rig.submit()
    fill(rig, num)
    metrics_step(rig.platform, FoldingProgress(), rig.clock.now())

    def refuse(*_):
        raise AssertionError("a chunk was read")

    monkeypatch.setattr(chunks, "decode", refuse)
    (one,) = rig.client.compare_metrics([num], ["loss"], max_points=100).series
    assert one.count == NUM_STEPS and {99.0, -3.0} <= set(one.values)


def test_curves_of_many_jobs_at_once(rig: Rig) -> None:
    first, second, empty = rig.submit(), rig.submit(), rig.submit()
    for num, value in ((first, 1.0), (second, 2.0)):
        points = [MetricPoint(rank, 5, 9, {"loss": value, "lr": 0.1}) for rank in range(2)]
        rig.store.transact(lambda tx, n=num, p=points: arrivals.add_points(tx, (n, 1, 0), p))
    found = rig.client.compare_metrics([second, first, empty, 999], ["loss"]).series
    assert [(one.job, one.rank, one.steps, one.values) for one in found] == [
        (first, 0, [5], [1.0]),
        (second, 0, [5], [2.0]),
    ]
    found = rig.client.compare_metrics([first], ["loss", "lr"], ranks=[0, 1]).series
    assert [(one.name, one.rank) for one in found] == [
        ("loss", 0),
        ("loss", 1),
        ("lr", 0),
        ("lr", 1),
    ]


def test_means_and_last_values_of_intervals(rig: Rig) -> None:
    num = rig.submit()
    points = [MetricPoint(0, step, step, {"x": float(step)}) for step in range(4000)]
    rig.store.transact(lambda tx: arrivals.add_points(tx, (num, 1, 0), points))
    rig.store.transact(lambda tx: folding.fold(tx, num))
    (one,) = rig.client.compare_metrics([num], ["x"], max_points=200, reduce="mean").series
    assert one.steps[0] == 31 and one.values[0] == 15.5
    (one,) = rig.client.compare_metrics([num], ["x"], max_points=200, reduce="last").series
    assert one.values == [float(step) for step in one.steps]


def test_a_damaged_chunk_stops_neither_other_jobs_nor_the_loop(rig: Rig) -> None:
    broken, whole = rig.submit(), rig.submit()
    for num in (broken, whole):
        fill(rig, num)
    table = arrivals.metric_chunks
    rig.store.transact(
        lambda tx: tx.conn.execute(
            table.update().where(table.c.job == broken).values(data=b"PMC\x01\xff\xff")
        )
    )
    progress = FoldingProgress()
    assert not metrics_step(rig.platform, progress, rig.clock.now())
    assert progress.damaged == {broken}
    assert [one.job for one in rig.store.view(lambda tx: series.find(tx, [broken, whole]))] == [
        whole
    ]
    assert not metrics_step(rig.platform, progress, rig.clock.now())


def test_curves_of_jobs_that_the_caller_may_not_read_are_left_out(rig: Rig) -> None:
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "ours"}, {"name": "theirs"}]})
    rig.client.accounts.add("ada")
    rig.client.accounts.grant("user:ada", "viewer", "ours")
    ours, theirs = rig.submit(project="ours"), rig.submit(project="theirs")
    for num in (ours, theirs):
        point = [MetricPoint(0, 1, 1, {"loss": 1.0})]
        rig.store.transact(lambda tx, n=num, p=point: arrivals.add_points(tx, (n, 1, 0), p))
    token = rig.client.create_token("t", [Scope.READ], principal="user:ada").token
    with PhalanxClient(URL, token, transport=rig.transport) as ada:
        found = ada.compare_metrics([ours, theirs], ["loss"]).series
    assert [one.job for one in found] == [ours]
    found = rig.client.compare_metrics([ours, theirs], ["loss"]).series
    assert [one.job for one in found] == [ours, theirs]
