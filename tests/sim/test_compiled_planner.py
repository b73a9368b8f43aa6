"""The planner compiled by mypyc decides what the Python one does; a checkout is never compiled in place."""

from __future__ import annotations

import json
import os
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


@pytest.fixture(scope="module")
def folder() -> Path:
    """The compiled copy; made now if this state of the sources has none yet, which takes minutes."""
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True)
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


def test_the_compiled_one_keeps_the_promises(folder: Path) -> None:
    where = "import phalanx.sim.engine as e, phalanx.core.jobs.machine as m; print(e.__file__, m.__file__)"
    assert [Path(one).suffix for one in run(folder, "-c", where).split()] == [".so", ".so"]
    tests = ["tests/property/test_streams.py", "tests/property/test_promises.py"]
    run(folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)


def test_simulations_end_the_same(folder: Path) -> None:
    words = ("-m", "phalanx.sim", "--jobs", "120", "--nodes", "6", "--policy", "all", "--json")
    python, compiled = (json.loads(run(one, *words)) for one in (ROOT / "src", folder))
    assert timeless(python) == timeless(compiled)


def timeless(found: object) -> object:
    """Without what a clock measured."""
    if isinstance(found, dict):
        return {k: timeless(v) for k, v in found.items() if not k.endswith(("_ms", "wall_s"))}
    return [timeless(one) for one in found] if isinstance(found, list) else found


def test_nothing_is_compiled_beside_the_sources(folder: Path) -> None:
    assert not list((ROOT / "src").rglob("*.so"))
    assert folder.parent == ROOT / "build" / "compiled"
