"""The peers do what the schedulers they stand for do, and reach the figures of their authors' code."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.scheduling import Project
from phalanx.sim.audit.evictions import EvictionRecorder
from phalanx.sim.cluster.engine import Result, simulate
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.model import SimulationSetup
from phalanx.sim.output.report import figures, mean
from phalanx.sim.peers.backfill import Profile, user_limit
from phalanx.sim.peers.catalog import POLICIES, Blind
from phalanx.sim.peers.rounds import water_level
from phalanx.sim.workload import generated, traces

pytestmark = pytest.mark.unit

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
HOUR = 3600.0
FREE = Costs(start_s=0.0, restart_s=0.0, save_s=0.0, slowdown=False)


def job(num: int, at_s: float, lasts_s: float, slots: int = 8, **more: object) -> TraceJob:
    return TraceJob(num, at_s, lasts_s, gang_of(slots, 8), **more)  # type: ignore[arg-type]


def run(policy: str, jobs: list[TraceJob], num_nodes: int, **more: object) -> Result:
    setup = SimulationSetup(traces.grid_nodes(num_nodes, 8, 4), costs=FREE, audit_every=1)
    return simulate(jobs, replace(setup, **more), POLICIES[policy]())  # type: ignore[arg-type]


def start_of(result: Result, num: int) -> float:
    found = result.runs[num].first_start_s
    assert found is not None
    return found


def easy_waits(jobs: list[TraceJob], free: int) -> list[float]:
    """EASY by counting slots, with exact limits: an independent second opinion."""
    waits: list[float] = []
    ends: list[tuple[float, int]] = []
    queue: list[TraceJob] = []
    coming = list(jobs)
    while coming or ends:
        times = [ends[0][0]] if ends else []
        now = min(times + ([coming[0].submit_s] if coming else []))
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        while coming and coming[0].submit_s <= now:
            queue.append(coming.pop(0))
        shadow, extra, stay = math.inf, 0, []
        for one in queue:
            late = now + one.duration_s > shadow
            if one.num_slots <= free and (not late or one.num_slots <= extra):
                free -= one.num_slots
                extra -= one.num_slots if late else 0
                heapq.heappush(ends, (now + one.duration_s, one.num_slots))
                waits.append(now - one.submit_s)
                continue
            if not stay:
                extra = free - one.num_slots
                for end, slots in sorted(ends):
                    extra += slots
                    if extra >= 0:
                        shadow = end
                        break
            stay.append(one)
        queue = stay
    return waits


class TestBackfill:
    def test_conservative_keeps_every_reservation_and_easy_only_that_of_the_head(self) -> None:
        jobs = [
            job(1, 0.0, 1000.0, 16, limit_s=1000.0),
            job(2, 0.0, 4000.0, 8, limit_s=4000.0),
            job(3, 60.0, 1000.0, 32, limit_s=1000.0),
            job(4, 120.0, 1000.0, 48, limit_s=1000.0),
            job(5, 180.0, 90_000.0, 8, limit_s=90_000.0),
        ]
        easy, kept = run("easy", jobs, 6), run("conservative", jobs, 6)
        assert start_of(easy, 3) == start_of(kept, 3)
        assert start_of(easy, 4) > 90_000.0
        assert start_of(kept, 4) < 4200.0

    def test_easy_waits_as_long_as_one_written_from_its_definition(self) -> None:
        found = generated.research(250, 2.0 * 64, seed=9)
        jobs = [
            replace(one, shape=gang_of(one.num_slots, 64), limit_s=one.duration_s) for one in found
        ]
        one_node = traces.grid_nodes(1, 64, 1)
        result = run("easy", jobs, 1, nodes=one_node, pass_s=0.0, audit_every=0)
        ours = mean(done.waited_s for done in result.runs.values())
        assert ours > HOUR / 3
        assert ours == pytest.approx(mean(easy_waits(jobs, 64)), rel=0.01)

    def test_a_profile_finds_the_first_gap_that_is_long_enough(self) -> None:
        profile = Profile(0, 4, [(100, 4), (300, 8)])
        assert profile.earliest(4, 1000) == 0
        assert profile.earliest(8, 50) == 100
        profile.take(100, 100, 8)
        assert profile.earliest(4, 150) == 200
        assert profile.earliest(4, 100) == 0
        assert profile.earliest(17, 1) is None

    def test_limits_are_at_least_the_duration(self) -> None:
        assert all(user_limit(0, n, 5000.0) >= 5000.0 for n in range(50))

    def test_slurm_lets_the_project_go_first_that_used_less(self) -> None:
        jobs = [job(1, 0.0, HOUR, project="heavy")]
        jobs += [job(2, 60.0, HOUR, project="heavy"), job(3, 120.0, HOUR, project="light")]
        slurm, easy = run("slurm-like", jobs, 1), run("easy", jobs, 1)
        assert start_of(slurm, 3) < start_of(slurm, 2)
        assert start_of(easy, 2) < start_of(easy, 3)


class TestCohorts:
    PROJECTS = (Project("own", guaranteed_slots=8), Project("lent", guaranteed_slots=8))

    def test_kueue_takes_back_what_was_lent_from_the_newest_borrower(self) -> None:
        jobs = [job(1, 0.0, 9 * HOUR, project="lent"), job(2, 600.0, 9 * HOUR, project="lent")]
        jobs.append(job(3, HOUR, HOUR, project="own"))
        result = run("kueue-like", jobs, 2, projects=self.PROJECTS)
        assert start_of(result, 3) == HOUR
        assert [result.runs[n].preemptions for n in (1, 2)] == [0, 1]

    def test_nobody_is_evicted_for_a_claim_beyond_the_own_quota(self) -> None:
        jobs = [job(1, 0.0, 4 * HOUR, project="lent"), job(2, 0.0, 4 * HOUR, project="own")]
        jobs.append(job(3, HOUR, HOUR, project="own"))
        for policy in ("kueue-like", "kai-like"):
            result = run(policy, jobs, 2, projects=self.PROJECTS)
            assert start_of(result, 3) == 4 * HOUR
            assert figures(result).preemptions == 0

    def test_kueue_spares_victims_that_were_not_needed_after_all(self) -> None:
        jobs = [job(1, 0.0, 9 * HOUR, 4, priority=10), job(2, 0.0, 9 * HOUR, 8, priority=20)]
        jobs.append(job(3, HOUR, HOUR, 8, priority=90))
        result = run("kueue-like", jobs, 2)
        assert [result.runs[n].preemptions for n in (1, 2)] == [1, 0]

    def test_kai_moves_a_small_job_so_that_a_gang_finds_a_whole_node(self) -> None:
        jobs = [job(1, 0.0, HOUR, 4), job(2, 0.0, 9 * HOUR, 4), job(3, 60.0, 9 * HOUR, 4)]
        jobs.append(job(4, 3 * HOUR, HOUR, 8))
        assert start_of(run("kai-like", jobs, 2), 4) < 3 * HOUR + 120.0
        assert start_of(run("kueue-like", jobs, 2), 4) >= 9 * HOUR


class TestSharing:
    def test_gandiva_takes_turns(self) -> None:
        jobs = [job(1, 0.0, 5 * HOUR), job(2, 60.0, 5 * HOUR)]
        result = run("gandiva-like", jobs, 1)
        assert 15 <= figures(result).preemptions <= 21
        ends = [result.runs[n].end_s or 0.0 for n in (1, 2)]
        assert abs(ends[0] - ends[1]) < 2 * HOUR

    def test_gavel_divides_time_evenly(self) -> None:
        jobs = [job(n, 0.0, 5 * HOUR) for n in (1, 2, 3)]
        result = run("gavel-max-min", jobs, 1, until_s=6 * HOUR)
        had = [result.runs[n].attained_slot_s / 8 for n in (1, 2, 3)]
        assert max(had) - min(had) < 0.2 * HOUR

    @pytest.mark.parametrize(
        ("sizes", "capacity", "level"),
        [
            ([1, 1], 8, 1.0),
            ([8, 8], 8, 4.0),
            ([1, 8, 8], 9, 4.0),
            ([], 8, 0.0),
            ([2, 4, 8], 9, 3.5),
        ],
    )
    def test_the_water_level_fills_the_cluster(
        self, sizes: list[int], capacity: int, level: float
    ) -> None:
        assert water_level(sizes, capacity) == level
        assert sum(min(size, level) for size in sizes) == min(capacity, sum(sizes))

    def test_themis_serves_the_worst_finish_time_first(self) -> None:
        jobs = [job(1, 0.0, HOUR), job(2, 60.0, 20 * HOUR), job(3, 600.0, 0.5 * HOUR)]
        result = run("themis-like", jobs, 1)
        assert start_of(result, 3) < start_of(result, 2)


class TestBlind:
    JOBS = (
        job(1, 0.0, 9 * HOUR, priority=10, checkpoint_s=0.0),
        job(2, 0.0, 9 * HOUR, priority=10, checkpoint_s=600.0),
        job(3, 2 * HOUR + 30, HOUR, priority=90),
    )

    def test_who_does_not_see_checkpoints_throws_more_away(self) -> None:
        kill = replace(FREE, graceful=False)
        seen = run("phalanx", list(self.JOBS), 2, costs=kill)
        blind = run("phalanx-blind", list(self.JOBS), 2, costs=kill)
        assert [seen.runs[n].preemptions for n in (1, 2)] == [0, 1]
        assert [blind.runs[n].preemptions for n in (1, 2)] == [1, 0]
        assert seen.slot_times.lost < 0.1 * blind.slot_times.lost

    def test_the_false_facts_are_put_right(self) -> None:
        class Looks:
            name = "phalanx-blind"

            def plan(self, cluster, now, oracle):  # type: ignore[no-untyped-def]
                before = dict(cluster.held)
                made = Blind().plan(cluster, now, oracle)
                assert cluster.held == before
                return made

        setup = SimulationSetup(traces.grid_nodes(2, 8, 4), costs=replace(FREE, graceful=False))
        result = simulate(list(self.JOBS), setup, Looks())
        assert figures(result).num_done == 3


def test_a_witness_changes_nothing_and_sees_who_left_for_whom() -> None:
    jobs = [job(1, 0.0, 9 * HOUR, priority=10), job(2, HOUR, HOUR, priority=90)]
    recorder = EvictionRecorder(POLICIES["phalanx"]())
    seen = simulate(jobs, SimulationSetup(traces.grid_nodes(1, 8, 4)), recorder)
    plain = simulate(jobs, SimulationSetup(traces.grid_nodes(1, 8, 4)), POLICIES["phalanx"]())
    assert seen.end_s == plain.end_s
    assert [(one.victim, one.beneficiary) for one in recorder.evictions] == [(1, 2)]
    assert recorder.needless() == []
    recorder.starts.clear()
    assert len(recorder.needless()) == 1


class TestPatience:
    """Two racks of two nodes; from the second to the fourth hour one node of each is free."""

    RACKS = tuple(traces.grid_nodes(4, 8, 2, 2))

    def start(self, gang: TraceJob) -> float:
        jobs = [job(1, 0.0, 4 * HOUR), job(2, 0.0, 2 * HOUR), job(3, 0.0, 4 * HOUR), gang]
        return start_of(run("fifo-skip", jobs, 4, nodes=self.RACKS), gang.num)

    def test_a_gang_insists_on_its_rack_and_then_relents(self) -> None:
        assert self.start(job(9, HOUR, HOUR, 16)) == 2 * HOUR
        wants = job(9, HOUR, HOUR, 16, preferred="rack", patience_s=9 * HOUR)
        assert self.start(wants) == 4 * HOUR
        assert self.start(replace(wants, patience_s=1.5 * HOUR)) == 2.5 * HOUR

    def test_what_no_rack_can_hold_does_not_wait_for_one(self) -> None:
        wants = job(9, HOUR, HOUR, 24, preferred="rack", patience_s=9 * HOUR)
        assert start_of(run("phalanx", [wants], 4, nodes=self.RACKS), 9) == HOUR


@pytest.mark.parametrize(("policy", "within"), [("las", 0.01), ("las-authors", 0.001)])
def test_las_is_that_of_the_published_simulator(policy: str, within: float) -> None:
    """Its authors' code counts slots and knows no nodes: 64 in one place, and nothing costs time."""
    path = TRACES / "philly600_tiresias.csv"
    if not path.exists():
        pytest.skip("the trace is not here")
    setup = SimulationSetup(traces.grid_nodes(1, 64, 1), costs=FREE, pass_s=0.0, recheck_s=30.0)
    row = figures(simulate(traces.tiresias(path, 64), setup, POLICIES[policy]()))
    assert row.jct_h * HOUR == pytest.approx(8419, rel=within)
    assert row.makespan_h * HOUR == pytest.approx(285_482, rel=0.01)


def test_fifo_is_that_of_the_published_simulator() -> None:
    """There it waits for a consolidated placement on 8 nodes of 8, and nothing passes the head."""
    path = TRACES / "philly600_tiresias.csv"
    if not path.exists():
        pytest.skip("the trace is not here")
    setup = SimulationSetup(traces.grid_nodes(8, 8, 4), costs=FREE, pass_s=0.0, recheck_s=30.0)
    row = figures(simulate(traces.tiresias(path, 8), setup, POLICIES["fifo"]()))
    assert row.jct_h * HOUR == pytest.approx(31_396, rel=0.001)


class TestConstants:
    """The constants of a peer change what it does."""

    JOBS = (job(1, 0.0, 5 * HOUR), job(2, 60.0, 5 * HOUR))

    @pytest.mark.parametrize(
        ("name", "short", "long"),
        [
            ("gandiva-like", {"quantum_s": 600.0}, {"quantum_s": 7200.0}),
            ("gavel-max-min", {"round_s": 600.0}, {"round_s": 7200.0}),
            ("las", {"limits_slot_s": (3600.0,)}, {"limits_slot_s": (1e6,)}),
            ("las-authors", {"limits_slot_s": (3600.0,)}, {"limits_slot_s": (1e6,)}),
        ],
    )
    def test_a_longer_turn_means_fewer_preemptions(
        self, name: str, short: dict[str, object], long: dict[str, object]
    ) -> None:
        setup = SimulationSetup(traces.grid_nodes(1, 8, 4), costs=FREE)
        few, many = (
            figures(simulate(self.JOBS, setup, POLICIES[name](**constants))).preemptions
            for constants in (long, short)
        )
        assert few < many

    def test_easy_that_expects_longer_runs_lets_more_jobs_pass_the_head(self) -> None:
        jobs = [job(1, 0.0, HOUR, limit_s=HOUR), job(2, 60.0, HOUR, 16, limit_s=HOUR)]
        jobs.append(job(3, 0.1 * HOUR, 0.5 * HOUR, 8, limit_s=0.95 * HOUR))
        setup = SimulationSetup(traces.grid_nodes(2, 8, 4), costs=FREE)
        late, soon = (
            simulate(jobs, setup, POLICIES["easy"](factor=factor)) for factor in (1.0, 3.0)
        )
        assert start_of(late, 3) > HOUR > start_of(soon, 3)

    def test_easy_may_try_the_shortest_limits_first(self) -> None:
        jobs = [job(1, 0.0, HOUR, 16, limit_s=HOUR), job(2, 10.0, HOUR, limit_s=HOUR)]
        jobs += [job(3, 20.0, HOUR, limit_s=5 * HOUR), job(4, 30.0, HOUR, limit_s=HOUR)]
        setup = SimulationSetup(traces.grid_nodes(2, 8, 4), costs=FREE)
        plain, short = (
            simulate(jobs, setup, POLICIES["easy"](shortest=shortest)) for shortest in (False, True)
        )
        assert start_of(plain, 3) < start_of(plain, 4)
        assert start_of(short, 4) < start_of(short, 3)

    def test_strict_kueue_queues_wait_for_their_head(self) -> None:
        jobs = [job(1, 0.0, HOUR, 8), job(2, 60.0, HOUR, 16), job(3, 120.0, HOUR, 8)]
        setup = SimulationSetup(traces.grid_nodes(2, 8, 4), costs=FREE)
        skips, waits = (
            simulate(jobs, setup, POLICIES["kueue-like"](strict=strict)) for strict in (False, True)
        )
        assert start_of(skips, 3) < HOUR < start_of(waits, 3)

    def test_kueue_with_fair_sharing_admits_the_queue_that_borrows_least(self) -> None:
        owners = [Project("a", guaranteed_slots=8), Project("b", guaranteed_slots=8)]
        jobs = [job(n, 0.0, 9 * HOUR, 8, project="a") for n in (1, 2)]
        jobs += [job(3, 0.0, 2 * HOUR, 16, project="b"), job(4, 60.0, HOUR, 16, project="a")]
        jobs += [job(5, 120.0, HOUR, 16, project="b")]
        setup = SimulationSetup(traces.grid_nodes(4, 8, 4), owners, costs=FREE)
        plain, fair = (
            simulate(jobs, setup, POLICIES["kueue-like"](fair=fair)) for fair in (False, True)
        )
        assert start_of(plain, 4) < start_of(plain, 5)
        assert start_of(fair, 5) < start_of(fair, 4)

    def test_a_protected_borrower_stays_until_it_has_run_long_enough(self) -> None:
        owners = [Project("own", guaranteed_slots=8), Project("lent")]
        jobs = [job(1, 0.0, 9 * HOUR, project="lent"), job(2, 600.0, HOUR, project="own")]
        setup = SimulationSetup(traces.grid_nodes(1, 8, 4), owners, costs=FREE)
        for name in ("kueue-like", "kai-like"):
            at_once, later = (
                simulate(jobs, setup, POLICIES[name](min_run_s=wait_s)) for wait_s in (0.0, HOUR)
            )
            assert start_of(at_once, 2) < HOUR <= start_of(later, 2)


def test_a_large_job_that_has_never_saved_is_not_preempted_by_its_equals() -> None:
    """Waiting short jobs outweigh a large one of their priority, if it continues from a checkpoint."""
    jobs = [job(n, n * 700.0, 60.0, 32, limit_s=60.0) for n in range(1, 20)]
    jobs += [job(n, 18_010.0 + n, 60.0, 16, limit_s=60.0) for n in range(21, 60)]
    for every_s, leaves in ((0.0, False), (600.0, True)):
        large = job(20, 15_000.0, 9 * HOUR, 32, checkpoint_s=every_s, limit_s=99 * HOUR)
        rough = replace(FREE, graceful=False)
        result = run("phalanx", [*jobs, large], 4, costs=rough, until_s=30_000.0, audit_every=0)
        assert (result.runs[20].preemptions > 0) is leaves
