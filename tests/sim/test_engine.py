"""The simulator: its books balance, its costs bite, and its peers do what their papers say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.scheduling import PlannerConfig
from phalanx.errors import UserError
from phalanx.sim.__main__ import main
from phalanx.sim.cluster.engine import Result, simulate
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.model import Outage, SimulationSetup
from phalanx.sim.output.report import delay_s
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import generated, traces

pytestmark = pytest.mark.unit


def run(
    jobs: list[TraceJob], policy: str = "phalanx", num_nodes: int = 4, **more: object
) -> Result:
    setup = SimulationSetup(traces.grid_nodes(num_nodes, 8, 4), audit_every=5)
    return simulate(jobs, replace(setup, **more), POLICIES[policy]())  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_finishes_every_job_with_its_books_in_balance(policy: str) -> None:
    jobs = generated.research(120, 28.0, seed=3)
    result = run(jobs, policy)
    assert all(done.end_s is not None for done in result.runs.values())
    wanted = sum(job.duration_s * job.num_slots for job in jobs)
    assert result.slot_times.useful == pytest.approx(wanted, rel=1e-6)
    held = sum(done.attained_slot_s for done in result.runs.values())
    slot_times = result.slot_times
    assert (
        slot_times.useful + slot_times.overhead + slot_times.slowed + slot_times.lost
        == pytest.approx(held, rel=1e-6)
    )


def test_two_runs_are_identical() -> None:
    jobs = generated.research(100, 28.0, seed=4)
    ends = [{n: r.end_s for n, r in run(jobs).runs.items()} for _ in range(2)]
    assert ends[0] == ends[1]


def test_a_lone_job_takes_its_time_and_the_start_up() -> None:
    result = run([TraceJob(1, 60.0, 1000.0, gang_of(8, 8))])
    assert result.runs[1].end_s == 60.0 + 30.0 + 1000.0
    assert delay_s(result, result.runs[1]) == 0.0


def test_a_scattered_gang_is_slowed_by_first_fit_and_not_by_us() -> None:
    jobs = [TraceJob(n, 0.0, 1000.0, gang_of(1, 8)) for n in range(1, 5)]
    jobs.append(TraceJob(9, 60.0, 1000.0, gang_of(8, 8), sensitivity=0.8))
    assert run(jobs, "skip-first-fit", 2).runs[9].factor == pytest.approx(1.8)
    assert run(jobs, "phalanx", 2).runs[9].factor == 1.0


def test_killed_victims_lose_work_and_saving_ones_do_not() -> None:
    jobs = [TraceJob(1, 0.0, 20_000.0, gang_of(8, 8), priority=10, checkpoint_s=3600.0)]
    jobs.append(TraceJob(2, 3000.0, 600.0, gang_of(8, 8), priority=90))
    kind = run(jobs, num_nodes=1)
    assert (kind.runs[1].preemptions, kind.slot_times.lost) == (1, 0.0)
    rough = run(jobs, num_nodes=1, costs=Costs(graceful=False))
    assert rough.slot_times.lost == pytest.approx((3000.0 - 30.0) * 8, rel=0.02)


def test_a_lost_node_costs_the_work_since_the_last_checkpoint_and_the_job_still_ends() -> None:
    jobs = [TraceJob(1, 0.0, 5000.0, gang_of(16, 8), checkpoint_s=1000.0)]
    lost = run(jobs, outages=(Outage(2500.0, "pool-00001", 3600.0),))
    assert lost.runs[1].failures == 1
    assert lost.runs[1].end_s is not None
    assert 0 < lost.slot_times.lost_to_failures <= 16 * 1000.0


def test_an_easy_head_is_not_delayed_by_what_is_backfilled() -> None:
    jobs = [
        TraceJob(1, 0.0, 1000.0, gang_of(8, 8)),
        TraceJob(2, 60.0, 1000.0, gang_of(16, 8)),
        *[TraceJob(n, 120.0, 500_000.0, gang_of(4, 8)) for n in (3, 4)],
    ]
    easy, skip = run(jobs, "easy", 2), run(jobs, "fifo-skip", 2)
    assert (easy.runs[2].first_start_s or 0) < 4000 * 1.2 < (skip.runs[2].first_start_s or 0)


def test_the_guard_bounds_what_starvation_costs() -> None:
    gang = TraceJob(1, 6000.0, 3600.0, gang_of(32, 8), kind="gang")
    small = [TraceJob(n, 300.0 * n, 2400.0, gang_of(4, 8), kind="small") for n in range(2, 200)]
    off = PlannerConfig(guard_after_s=1e12, num_reservations=0, hysteresis=1e12)
    starved = run([gang, *small], config=off).runs[1].first_start_s
    bounded = PlannerConfig(guard_after_s=7200.0, num_reservations=1, hysteresis=1e12)
    guarded = run([gang, *small], config=bounded).runs[1].first_start_s
    assert starved is not None and guarded is not None
    assert guarded - 6000.0 < 4 * 3600.0 < starved - 6000.0


def test_readers_name_the_line_and_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "t.csv"
    bad.write_text("submit_s,duration_s,gpus,vc\n1,x,1,a\n")
    with pytest.raises(UserError, match=r"line 2: duration_s is 'x'"):
        traces.philly(bad, 0.0, 10.0)
    bad.write_text("submit_s,gpus\n1,1\n")
    with pytest.raises(UserError, match="no column duration_s, vc"):
        traces.philly(bad, 0.0, 10.0)


def test_the_standard_workload_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    path.write_text("; a comment\n1 5 0 100 4 -1 -1 4 600 -1 1 7 1 3 2 -1 -1 -1\n")
    (job,) = traces.swf(path)
    assert (job.submit_s, job.duration_s, job.num_slots, job.limit_s) == (5.0, 100.0, 4, 600.0)
    path.write_text("1 2 3\n")
    with pytest.raises(UserError, match="line 1: 3 fields"):
        traces.swf(path)


def test_equal_shares_never_a_ragged_rest() -> None:
    assert (gang_of(12, 8).nodes, gang_of(12, 8).slots_per_node) == (2, 6)
    assert (gang_of(24, 8).nodes, gang_of(24, 8).slots_per_node) == (3, 8)


def test_the_command_line_answers_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--jobs", "60", "--nodes", "4", "--policy", "fifo-skip"]
    assert main([*words, "--what-if", "nodes=+2"]) == 0
    assert "fifo-skip [nodes=+2]" in capsys.readouterr().out
    assert main(["--policy", "magic"]) == 1
    assert "unknown policy 'magic'" in capsys.readouterr().err
