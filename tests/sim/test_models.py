"""The models of parallel machines have the properties that their papers state."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from phalanx.sim.__main__ import main
from phalanx.sim.workload import models, traces

pytestmark = pytest.mark.unit


def test_lublin_has_the_published_shares_of_serial_and_power_of_two_jobs() -> None:
    jobs = models.lublin(4000, 128, node_size=128, seed=3)
    sizes = [job.num_slots for job in jobs]
    assert sum(size == 1 for size in sizes) / 4000 == pytest.approx(0.244, abs=0.03)
    powers = sum(size > 1 and size & (size - 1) == 0 for size in sizes) / 4000
    # 0.576 are drawn as powers of two; the other parallel jobs hit one by chance.
    assert 0.56 < powers < 0.70
    assert max(sizes) <= 128


def test_lublin_runs_are_short_or_long_and_longer_for_large_jobs() -> None:
    jobs = models.lublin(4000, 128, seed=3)
    small = [job.duration_s > 3600.0 for job in jobs if job.num_slots <= 2]
    large = [job.duration_s > 3600.0 for job in jobs if job.num_slots >= 64]
    assert sum(large) / len(large) > 1.3 * sum(small) / len(small)


def test_lublin_arrivals_follow_the_hours_of_a_day() -> None:
    hours = [at_s / 3600.0 % 24 for at_s in models._arrivals(random.Random(1), 4000)]
    night, noon = sum(2 <= hour < 5 for hour in hours), sum(12 <= hour < 15 for hour in hours)
    assert noon > 3 * night


@pytest.mark.parametrize("make", [models.lublin, models.downey])
def test_a_model_asks_for_the_load_and_users_guess_too_much(make) -> None:  # type: ignore[no-untyped-def]
    jobs = make(2000, 256, 0.8, seed=5)
    demand = sum(job.num_slots * job.duration_s for job in jobs)
    assert demand / jobs[-1].submit_s == pytest.approx(0.8 * 256, rel=0.1)
    assert all(job.limit_s is not None and job.limit_s >= job.duration_s for job in jobs)
    assert make(50, 256, seed=5) == make(50, 256, seed=5) != make(50, 256, seed=6)


def test_the_program_simulates_a_model_and_a_compressed_log_by_its_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--nodes", "4", "--policy", "fifo-skip", "--json"]
    assert main(["--model", "lublin", "--jobs", "50", *words]) == 0
    assert json.loads(capsys.readouterr().out)[0]["num_done"] == 50
    line = "1 0 -1 600 8 -1 -1 8 900 -1 1 1 1 1 1 1 -1 -1\n"
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(("; MaxProcs: 32\n" + line).encode()))
    assert main(["--trace", str(path), *words]) == 0
    assert json.loads(capsys.readouterr().out)[0]["num_done"] == 1
    path.write_bytes(gzip.compress(line.encode())[:-6])
    assert main(["--trace", str(path), *words]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert [job.limit_s for job in traces.swf(_plain(tmp_path, line))] == [900.0]


def _plain(folder: Path, text: str) -> Path:
    path = folder / "log.swf"
    path.write_text(text)
    return path
