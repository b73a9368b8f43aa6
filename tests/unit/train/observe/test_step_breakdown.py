"""The arithmetic of a profile and of communication times, from numbers alone."""

import pytest

from phalanx.core.telemetry.instruments import sum_name
from phalanx.core.telemetry.traces import TraceTotals
from phalanx.train.observe.communication import times
from phalanx.train.observe.profiling import _BACKWARD, RecordingTiming, _ActiveProfile
from phalanx.train.observe.timing import (
    COMPUTE,
    DATA,
    OPTIMIZER,
    REST,
    STALL,
    DurationHistogram,
    NoTiming,
)

pytestmark = pytest.mark.unit
MS = 1_000_000
STEP = {DATA: 1 * MS, COMPUTE: 4 * MS, _BACKWARD: 8 * MS, OPTIMIZER: 2 * MS, REST: MS, STALL: 0}


def recorded(communication=(), steps=2):
    timing = RecordingTiming(NoTiming(), lambda: None, lambda: None)
    timing.steps = [dict(STEP) for _ in range(steps)]
    timing.communication = list(communication)
    timing.samples = 64 * steps
    return timing


def test_the_sections_add_up_to_the_step():
    found = recorded().split(3, None, 0)
    assert (found.rank, found.steps, found.step_s, found.samples) == (3, 2, 0.016, 64)
    parts = (found.data_s, found.forward_s, found.backward_s, found.optimizer_s, found.rest_s)
    assert parts == (0.001, 0.004, 0.008, 0.002, 0.001)
    assert (found.exposed_s, found.hidden_s, found.ops, found.busy) == (0, 0, 0, None)


def test_exposed_communication_is_taken_from_the_backward_pass_first():
    found = recorded([(0.005, 0.003), (0.007, 0.003)]).split(0, None, 0)
    assert (found.exposed_s, found.backward_s, found.forward_s) == (0.003, 0.005, 0.004)
    assert found.hidden_s == pytest.approx(0.003)
    more = recorded([(0.02, 0.01)]).split(0, None, 0)
    assert (more.backward_s, more.forward_s) == (0, pytest.approx(0.002))
    most = recorded([(1.0, 1.0)]).split(0, None, 0)
    assert (most.backward_s, most.forward_s, most.exposed_s) == (0, 0, 0.012)


def test_without_a_reducer_communication_comes_from_the_trace():
    seen = TraceTotals(exposed_s=0.004, hidden_s=0.002, ops=300, busy_s=0.008)
    found = recorded().split(0, seen, 2)
    assert (found.exposed_s, found.hidden_s, found.ops) == (0.002, 0.001, 150)
    assert found.busy == pytest.approx(0.004 / 0.016)
    assert recorded([(0.005, 0.003)]).split(0, seen, 2).exposed_s == 0.003


def test_a_profile_counts_its_timed_and_its_traced_steps():
    from phalanx.core.telemetry.profiles import RequestedProfile

    active = _ActiveProfile(RequestedProfile(1, 3, 2), 10, recorded(steps=0))
    assert [active.all_timed() for _ in range(3)] == [False, False, True]
    assert [active.all_traced() for _ in range(2)] == [False, True]


def test_only_communication_beyond_the_backward_pass_counts():
    values = times(
        {
            "forward_compute_time": 2 * MS,
            "backward_compute_time": 5 * MS,
            "backward_comm_time": 4 * MS,
            "backward_compute_comm_overlap_time": 3 * MS,
        }
    )
    assert values["forward_time_seconds"] == 0.002
    assert values["gradient_sync_time_seconds"] == 0.004
    assert values["communication_time_seconds"] == pytest.approx(0.001)
    assert times({"backward_comm_time": 0}) == {}


def test_a_histogram_has_the_mean_and_the_sum_of_what_was_added():
    histogram = DurationHistogram()
    assert histogram.values("x") == {}
    for duration_ns in (MS, 2 * MS, 6 * MS):
        histogram.add(duration_ns)
    values = histogram.values("x")
    assert values.pop("x") == pytest.approx(0.003)
    assert values.pop(sum_name("x")) == pytest.approx(0.009)
    assert sum(values.values()) == 3
