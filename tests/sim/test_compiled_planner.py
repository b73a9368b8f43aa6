"""The planner compiled by mypyc decides what the Python one does; a checkout is never compiled in place."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "compile_planner.py"
SCALE = ROOT / "bench" / "scheduler" / "scale.py"
NOT_POSSIBLE = 3
# An eighth of the stream that the benchmark measures: some hundred evictions are in it.
PASSES = "52"
LIMITS = ROOT / "bench" / "scheduler" / "user_limits.py"
SEEDS = "6"
# Tests that run on the compiled copy: of what is compiled and of what stores it, and all of these rooms.
SHORT = (
    "tests/unit/store",
    "tests/unit/services/lifecycle",
    "tests/unit/core/jobs",
    "tests/unit/core/scheduling/stages",
    "tests/sim/test_kueue_shapes.py",
)
LONG = (
    "tests/unit/store",
    "tests/unit/services",
    "tests/unit/core",
    "tests/sim/test_kueue_shapes.py",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The compiled copy; made now if this state of the sources has none yet.

    Without optimization, which takes the C compiler minutes and is its own matter; with `PLANNER=full`
    it is the copy that users get.
    """
    quick = () if os.environ.get("PLANNER") == "full" else ("--quick",)
    done = subprocess.run([sys.executable, PROGRAM, *quick], capture_output=True, text=True)
    if done.returncode == NOT_POSSIBLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def run(folder: Path, *words: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_decisions_are_the_same_to_the_last_digit(folder: Path) -> None:
    python = json.loads(run(ROOT / "src", SCALE, PASSES))
    compiled = json.loads(run(folder, SCALE, PASSES))
    assert (python["planner"], compiled["planner"]) == ("Python", "compiled")
    assert python["num_evicted"] > 100
    assert compiled["decisions"] == python["decisions"]


def test_decisions_at_the_limits_of_users_are_the_same_to_the_last_digit(folder: Path) -> None:
    python = json.loads(run(ROOT / "src", LIMITS, SEEDS))
    compiled = json.loads(run(folder, LIMITS, SEEDS))
    assert (python.pop("planner"), compiled.pop("planner")) == ("Python", "compiled")
    for reason in ("waiting_for_user_quota", "waiting_for_type_quota"):
        assert python["reasons"][reason] > 20, "the stream meets too few limits to show anything"
    assert python["num_evicted"] > 50 and python["num_resized"] > 20
    assert compiled == python


def test_the_compiled_one_keeps_the_promises(folder: Path) -> None:
    where = (
        "import phalanx.sim.cluster.engine as e, phalanx.core.jobs.machine as m; "
        "print(e.__file__, m.__file__)"
    )
    assert [Path(one).suffix for one in run(folder, "-c", where).split()] == [".so", ".so"]
    tests = ["tests/property/test_streams.py", "tests/property/test_promises.py"]
    tests += ["tests/property/test_quotas.py"]
    # Compiled classes take no other method, so no guard of theirs can be switched off.
    guards_off = "not test_without_the_limits"
    run(folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", guards_off, *tests)


@pytest.mark.parametrize(
    "tests",
    [SHORT, pytest.param(LONG, marks=pytest.mark.proof)],
    ids=["short", "long"],
)
def test_the_control_plane_runs_on_it(folder: Path, tests: tuple[str, ...]) -> None:
    """What it stores it can read again, from submission to the end of jobs."""
    # Compiled classes take no other method, so no guard of theirs can be switched off.
    guards_off = "not test_without_the_limits"
    run(folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", guards_off, *tests)


def test_a_copy_that_decides_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler: a copy in Python whose planner was changed."""
    spec = importlib.util.spec_from_file_location("compile_planner", PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "COMPARED", (("bench/scheduler/scale.py", "25"),))
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    program._compare(copy)
    config = copy / "phalanx" / "core" / "scheduling" / "model" / "planning_input.py"
    changed = config.read_text().replace(
        "preemption_budget: int = 16", "preemption_budget: int = 2"
    )
    assert changed != config.read_text()
    config.write_text(changed)
    with pytest.raises(SystemExit, match="decides otherwise"):
        program._compare(copy)


def test_nothing_is_compiled_beside_the_sources(folder: Path) -> None:
    assert not list((ROOT / "src").rglob("*.so"))
    assert folder.parent == ROOT / "build" / "compiled"
