"""`make bench-scheduler ARGS=--quick` runs every policy and prints one table."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import generated

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "scheduler" / "run.py"


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True)


@pytest.mark.extras
def test_the_quick_run_compares_every_policy() -> None:
    done = bench("--quick")
    assert done.returncode == 0, done.stderr
    lines = [line.split()[3] for line in done.stdout.splitlines() if line.startswith("[quick")]
    assert set(POLICIES) <= set(lines)
    assert any("a storm: evictions in vain" in line for line in done.stdout.splitlines())


def test_an_unknown_scenario_is_refused_and_a_missing_trace_is_said(tmp_path: Path) -> None:
    assert "no scenario T77" in bench("--only", "T77").stderr
    done = bench("--only", "T1,T6", "--traces", str(tmp_path / "nowhere"))
    assert done.returncode == 0
    assert "T1: skipped, no traces" in done.stdout
    assert "T6: skipped, no traces" in done.stdout


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_fifo_waits_as_long_as_in_a_third_party_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accasim")
    monkeypatch.syspath_prepend(str(ROOT))
    live = importlib.import_module("bench.scheduler.live")
    jobs = generated.research(400, 1.3 * 64, seed=5)
    ours, theirs = live.mean_waits([job for job in jobs if job.num_slots <= 64], 8, "FIFO")
    assert theirs > 600.0
    assert ours == pytest.approx(theirs, rel=0.01)
