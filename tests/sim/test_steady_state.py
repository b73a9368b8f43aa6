"""The LLM mix that is drawn here, and the steady state in which a cluster's useful share is measured."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.sim.jobs import TraceJob
from phalanx.sim.workload import generated, traces

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared" / "traces" / "llm_synth_s0.csv"
HOUR = 3600.0


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("bench.scheduler.steady")


def one(num: int, at_s: float, lasts_s: float, slots: int = 1) -> TraceJob:
    return TraceJob(num, at_s, lasts_s, GangShape(1, slots, slots))


def test_the_first_draw_of_the_llm_mix_is_the_stored_trace() -> None:
    if not TRACE.exists():
        pytest.skip("the trace is not here")
    assert generated.llm_mix(0) == traces.llm_mix(TRACE)


def test_draws_differ_in_their_jobs_and_agree_in_their_load() -> None:
    draws = [generated.llm_mix(seed, days=4) for seed in (1, 2)]
    assert draws[0] != draws[1]
    for jobs in draws:
        work = sum(job.num_slots * job.duration_s for job in jobs)
        assert 1400 < work / (4 * 86_400.0) < 1900
        assert max(job.num_slots for job in jobs) == 1024


def test_a_period_brings_nine_tenths_of_what_the_cluster_can_do(steady: ModuleType) -> None:
    jobs = [one(1, 0.0, 6 * HOUR, 4), one(2, 12 * HOUR, 90 * HOUR, 2)]
    many, period_s = steady.repeated(jobs, 24 * HOUR, 4, seed=0)
    # Nobody runs longer than a period: 4 × 6 h and 2 × 24 h.
    assert period_s == pytest.approx(72 * HOUR / (0.9 * 4))
    assert [job.num for job in many] == [1, 2, 3, 4]
    assert [job.submit_s for job in many[2:4]] == [period_s, 1.5 * period_s]


def test_other_seeds_repeat_the_days_in_other_orders(steady: ModuleType) -> None:
    jobs = [one(n + 1, n * 24 * HOUR, HOUR + n) for n in range(7)]
    for seed, same in ((0, True), (3, False)):
        many, _ = steady.repeated(jobs, 7 * 24 * HOUR, 4, seed)
        first, second = [[job.duration_s for job in many[at : at + 7]] for at in (0, 7)]
        assert sorted(first) == sorted(second)
        assert (first == second) is same


def test_a_cluster_without_end_does_what_arrives(steady: ModuleType) -> None:
    period_s = 10 * HOUR
    inside = one(1, period_s, HOUR - 30.0, 2)
    assert steady.without_end([inside], 30.0, period_s, 4) == pytest.approx(
        2 * (HOUR - 30.0) / (4 * period_s)
    )
    # Half of it lies in the second period, and what begins after it counts nothing.
    half = replace(inside, submit_s=2 * period_s - HOUR, duration_s=2 * HOUR)
    late = replace(inside, submit_s=2 * period_s)
    assert steady.without_end([half, late], 0.0, period_s, 4) == pytest.approx(
        2 * HOUR / (4 * period_s)
    )
