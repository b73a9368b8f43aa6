"""The load shapes have the parameters of Kueue's own files, and a small part of them runs to the end."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT.parent / "shared" / "traces" / "kueue"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kueue_shapes", ROOT / "bench/kueue_shapes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["baseline", "large-scale", "tas"])
def test_the_parameters_are_theirs(bench: ModuleType, name: str) -> None:
    path = FILES / f"{name}-generator.yaml"
    if not path.exists():
        pytest.skip("Kueue's files are not here")
    assert bench.of_config(path) == bench.SHAPES[name]


@pytest.mark.parametrize("name", ["baseline", pytest.param("tas", marks=pytest.mark.extras)])
def test_a_small_part_runs_to_the_end(
    bench: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.measure(name, bench.SHAPES[name], 0.002)
    said = capsys.readouterr().out
    assert f"{name}: " in said and "workloads in" in said
