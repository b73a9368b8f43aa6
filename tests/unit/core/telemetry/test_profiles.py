"""Verdicts of profiles, and traces of several ranks on one clock."""

import pytest

from phalanx.core.telemetry.profiles import Bottleneck, StepBreakdown, judge
from phalanx.core.telemetry.traces import (
    ClockOffset,
    RankTrace,
    TraceTotals,
    figures,
    merge,
    offsets,
)

pytestmark = pytest.mark.unit


def split(rank=0, **parts):
    """A step of 100 ms that computes, but for `parts`, in milliseconds."""
    seconds = {
        f"{name}_s": value / 1e3 for name, value in parts.items() if name not in ("ops", "busy")
    }
    spent = sum(value for name, value in seconds.items() if name != "hidden_s")
    work = 0.1 - spent
    return StepBreakdown(
        rank=rank,
        steps=10,
        step_s=0.1,
        samples=8,
        **{"forward_s": work / 3, "backward_s": work * 2 / 3, **seconds},
        ops=parts.get("ops", 50),
        busy=parts.get("busy"),
    )


@pytest.mark.parametrize(
    ("ranks", "finding", "words"),
    [
        ([split(0), split(1)], Bottleneck.HEALTHY, "100%"),
        (
            [split(0, data=30), split(1, data=28)],
            Bottleneck.INPUT_BOUND,
            "rank 0 waits 30 ms of 100 ms",
        ),
        (
            [split(0, exposed=40), split(1, exposed=30)],
            Bottleneck.COMMUNICATION_BOUND,
            "30 ms of 100 ms",
        ),
        # All wait for rank 2: that is no slow network.
        (
            [split(0, exposed=60), split(1, exposed=62), split(2, exposed=2)],
            Bottleneck.STRAGGLER,
            "rank 2 takes 98 ms",
        ),
        ([split(0, exposed=50), split(1, data=50)], Bottleneck.STRAGGLER, "the wait for data"),
        # Rank 0 takes twice as long as rank 1 for what is little beside the network: 6 of 100 ms.
        (
            [split(0, exposed=88), split(1, exposed=94)],
            Bottleneck.COMMUNICATION_BOUND,
            "88 ms of 100 ms",
        ),
        (
            [split(0, exposed=60), split(1, exposed=80)],
            Bottleneck.COMMUNICATION_BOUND,
            "60 ms of 100 ms",
        ),
        ([split(0, stall=20), split(1, stall=20)], Bottleneck.SAVING_BOUND, "20%"),
        ([split(0, ops=12_000)], Bottleneck.SMALL_BATCH, "12000 operations"),
        ([split(0, busy=0.3), split(1, busy=0.2)], Bottleneck.SMALL_BATCH, "25%"),
        ([split(0, data=15, optimizer=60)], Bottleneck.SMALL_BATCH, "the optimizer takes 60%"),
        ([split(0, data=70, busy=0.25)], Bottleneck.INPUT_BOUND, "70 ms of 100 ms"),
        ([split(0, busy=0.9)], Bottleneck.HEALTHY, ""),
        ([], Bottleneck.HEALTHY, "no step"),
    ],
)
def test_what_limits_a_training(ranks, finding, words):
    found = judge(ranks)
    assert found.finding is finding and words in found.said and found.advice


def test_clocks_are_bounded_by_collectives():
    # Rank 1 is 1000 ahead; each round takes 10 on the true clock, entered at different moments.
    first = [(100, 120), (200, 216)]
    second = [(1104, 1119), (1190, 1217)]
    zero, one = offsets([first, second])
    assert zero == ClockOffset()
    assert abs(one.ahead_ns - 1000) <= one.error_ns < 20


def x(name, cat, ts, dur, tid=1, **rest):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid, "pid": 7, **rest}


def test_communication_is_exposed_where_nothing_is_computed():
    events = [
        x("aten::linear", "cpu_op", 0, 100),
        x("aten::mm", "cpu_op", 10, 80),
        x("gloo:all_reduce", "user_annotation", 50, 100, tid=2),
        x("c10d::allreduce_", "cpu_op", 110, 40),
    ]
    found = figures(events)
    assert found == TraceTotals(
        exposed_s=pytest.approx(60e-6), hidden_s=pytest.approx(40e-6), ops=2
    )


def test_on_a_gpu_kernels_count():
    events = [
        x("aten::mm", "cpu_op", 0, 500),
        x("gemm", "kernel", 0, 100, tid=7),
        x("ncclDevKernel_AllReduce", "kernel", 50, 100, tid=20),
    ]
    found = figures(events)
    assert found.busy_s == pytest.approx(100e-6)
    assert (found.hidden_s, found.exposed_s) == (pytest.approx(50e-6), pytest.approx(50e-6))


def test_traces_are_merged_on_the_clock_of_rank_0():
    one = RankTrace(0, 1_000_000, [x("a", "cpu_op", 5, 1)], [("data", 1_001_000, 1_002_000)])
    two = RankTrace(1, 9_000_000, [x("b", "cpu_op", 5, 1, id=3)])
    merged = merge([one, two], [ClockOffset(), ClockOffset(8_000_000)])["traceEvents"]
    at = {event["name"]: event for event in merged if event["ph"] == "X"}
    assert at["a"]["ts"] == at["b"]["ts"] == 4.0 and at["data"]["ts"] == 0.0
    assert (at["a"]["pid"] // 100, at["b"]["pid"] // 100, at["b"]["id"]) == (0, 1, "1-3")
