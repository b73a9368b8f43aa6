"""The sets of the scheduler's benchmark, the constants of its peers, and its intervals."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from phalanx.sim.cluster.engine import simulate
from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.model import SimulationSetup
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import generated, traces

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "scheduler" / "run.py"
LOG = "".join(
    f"{n} {60 * n} -1 {300 + 40 * n} 8 -1 -1 {1 + n % 12} {900 + 60 * n} -1 1 1 1 1 1 1 -1 -1\n"
    for n in range(1, 60)
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("bench.scheduler")


def module(name: str) -> ModuleType:
    return importlib.import_module(f"bench.scheduler.{name}")


def test_tuning_sets_are_the_first_five_weeks_and_judging_sets_come_after(
    bench: ModuleType,
) -> None:
    sets = module("sets")
    days = {"tuning": [], "judging": []}
    for one in sets.SETS.values():
        kind, _, at = one.name.rpartition("-")
        if kind in ("philly", "gangs", "tenants"):
            days[one.part].append(int(at))
    assert max(days["tuning"]) == 1002
    assert min(days["judging"]) == 1009
    assert {name for name in sets.SMALL_TUNING} <= {
        name for name, one in sets.SETS.items() if one.part == sets.TUNING
    }


def test_draws_of_judging_sets_are_no_draws_of_tuning_sets(bench: ModuleType) -> None:
    sets = module("sets")
    for kind in ("research", "training"):
        drawn = [
            sets.SETS[f"{kind}-{draw}"].make(Path(), seed, True)[0]
            for draw in (0, 100)
            for seed in (0, 1)
        ]
        starts = [tuple(job.submit_s for job in jobs[:5]) for jobs in drawn]
        assert len(set(starts)) == 4


def test_every_peer_has_constants_that_its_maker_takes(bench: ModuleType) -> None:
    tune, peers, judge = module("tune"), module("peers"), module("judge")
    known = json.loads(peers.TUNED.read_text())
    spaces = tune.SPACES | tune.TENANT_SPACES
    assert set(tune.SPACES) <= set(known) <= set(spaces)
    for name, found in known.items():
        assert len(found["tried"]) <= tune.BUDGET
        assert found["best"] in [row["setting"] for row in found["tried"]]
        POLICIES[name.split()[0]](**peers.best_constants(name))
    assert set(judge.PEERS) - {"fifo-skip"} == set(tune.SPACES)


def test_every_peer_has_the_whole_budget_and_begins_with_its_defaults(bench: ModuleType) -> None:
    tune = module("tune")
    for name in (*tune.SPACES, *tune.TENANT_SPACES):
        found = tune.settings(name)
        assert found[0] == {} and len(found) == tune.BUDGET
        assert len({str(one) for one in found}) == len(found)
        POLICIES[name.removesuffix(tune.WITH_TENANTS)](**found[-1])


def test_the_chosen_setting_is_the_best_of_those_that_honour_guarantees(bench: ModuleType) -> None:
    tune = module("tune")
    rows = [
        {"setting": {}, "delay_h": {"a": 2.0, "b": 2.0}, "owed_s": 90},
        {"setting": {"n": 1}, "delay_h": {"a": 1.0, "b": 1.0}, "owed_s": 9000},
        {"setting": {"n": 2}, "delay_h": {"a": 1.0, "b": 3.0}, "owed_s": 150},
    ]
    assert tune.best_of(rows) == ({"n": 2}, pytest.approx(0.866, abs=1e-3))
    del rows[1]["owed_s"]
    assert tune.best_of(rows) == ({"n": 1}, 0.5)


def test_a_kept_run_is_used_until_its_jobs_or_its_policy_change(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, table, peers = module("kept"), module("table"), module("peers")
    jobs = generated.research(12, 8.0, seed=1)
    setup = SimulationSetup(traces.grid_nodes(16, 8))
    made: list[str] = []

    def run(name: str, jobs: list[TraceJob], **constants: float) -> float:
        def simulated(*arguments: object) -> object:
            made.append(name)
            return simulate(*arguments)

        monkeypatch.setattr(table, "simulate", simulated)
        runs = kept.KeptRuns(tmp_path / "x.0.jsonl")
        one = table.Bench("x", 0, tmp_path, runs)
        make = partial(POLICIES[name], **constants)
        return float(one.run(name, jobs, setup, make).row.delay_h)

    for name in ("las", "phalanx"):
        assert run(name, jobs) == pytest.approx(run(name, jobs), abs=1e-6)
    assert made == ["las", "phalanx"]
    run("las", jobs, min_run_s=7.0)
    run("las", jobs[:-1], min_run_s=7.0)
    assert made == ["las", "phalanx", "las", "las"]
    monkeypatch.setattr(kept, "planner_digest", lambda: "another planner")
    run("las", jobs[:-1], min_run_s=7.0)
    assert len(made) == 4
    run("phalanx", jobs)
    assert made[4:] == ["phalanx"]
    assert peers.tuned("kai-like", has_tenants=True)().name == "kai-like"


def test_comments_and_docstrings_do_not_change_a_digest(bench: ModuleType) -> None:
    meaning = module("kept").meaning
    plain = meaning('def f(a):\n    """One."""\n    return a + 1\n')
    assert plain == meaning("# note\ndef f(a):\n    return (a + 1)  # more\n")
    assert plain != meaning("def f(a):\n    return a + 2\n")


def test_a_bar_is_met_only_if_every_goal_of_it_is(bench: ModuleType) -> None:
    bars, table = module("bars"), module("table").Table()
    table.at_most("judging: a", "p99 <= 1.0 x that peer", 0.5, 1.0)
    table.at_most("judging: b", "p99 <= 1.0 x that peer", 1.5, 1.0)
    table.at_most("judging: b", "evictions <= 2 a job", 1.0, 2.0, "")
    lines = bars.lines(table).splitlines()
    assert "| judging sets: p99 <= 1.0 x that peer | 1 of 2; worst 1.50 x (b) | **no** |" in lines
    assert "| judging sets: evictions <= 2 a job | 1.00 | yes |" in lines
    assert "| T9: pass p99 <= 10 ms | not run | |" in lines
    assert len(lines) == len(bars.BARS) + 2


def test_an_interval_holds_the_ratio_and_is_a_point_where_all_days_are_alike(
    bench: ModuleType,
) -> None:
    judge = module("judge")
    ours = {f"sum {day}": 1.0 for day in range(7)}
    theirs = {f"sum {day}": 2.0 for day in range(7)}
    low, high = judge.interval(ours, theirs)
    assert low == pytest.approx(0.5, abs=1e-4) and high == pytest.approx(0.5, abs=1e-4)
    theirs["sum 3"] = 20.0
    low, high = judge.interval(ours, theirs)
    assert low < 7 / 32 < high <= 0.5 + 1e-4


def test_waits_far_beyond_those_of_their_class_are_counted(bench: ModuleType) -> None:
    rules = module("rules")
    jobs = [TraceJob(n, 0.0, 60.0, gang_of(1, 8)) for n in range(1, 6)]
    waits = {1: 100.0, 2: 100.0, 3: 100.0, 4: 1001.0, 5: 999.0}
    assert rules.num_starved(jobs, waits) == 1


@pytest.mark.extras
def test_a_log_is_judged_with_the_nodes_of_its_header(tmp_path: Path) -> None:
    path = tmp_path / "site.swf"
    path.write_text("; MaxProcs: 32\n" + LOG)
    words = ["--pure", "--only", "", "--swf", str(path), "--traces", str(tmp_path / "nowhere")]
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[site.swf seed 0] judging: 59 jobs, 32 slots" in done.stdout
    assert "judging: site.swf" in done.stdout and "mean <= 1.0 x best peer" in done.stdout
    path.write_text(LOG)
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode != 0
    assert "give --swf-nodes" in done.stderr
