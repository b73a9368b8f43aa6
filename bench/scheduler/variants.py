"""The planner as Python and compiled: which of them runs here, and how to start the other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.scheduling import planner

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
PYTHON, COMPILED = "Python", "compiled"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the two, and the folder that holds it."""

    name: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """The environment of a process that runs it."""
        before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = [path for path in before if path and Path(path) != here().folder]
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), *others])}


def here() -> Variant:
    """What this process runs."""
    file = Path(str(planner.__file__))
    return Variant(PYTHON if file.suffix == ".py" else COMPILED, file.parents[3])


def both() -> list[Variant]:
    """The planner as Python and, if this process runs it, the compiled one."""
    python = Variant(PYTHON, SOURCES)
    return [python] if here().name == PYTHON else [python, here()]


def compiled() -> Variant | None:
    """The compiled planner, built now if need be; None, and a line that says why, if that cannot be."""
    program = ROOT / "scripts" / "compile_planner.py"
    done = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True)
    return Variant(COMPILED, Path(done.stdout.strip())) if done.returncode == 0 else None


def run_again_with(variant: Variant, program: str) -> None:
    """Go on as a process that runs this one; does not return."""
    sys.stdout.flush()
    words = [sys.executable, program, *sys.argv[1:]]
    os.execve(sys.executable, words, variant.environment())
