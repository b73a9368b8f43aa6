"""Compile the planner of this checkout with mypyc, beside it, and print the folder to put on PYTHONPATH.

    PYTHONPATH=$(.venv/bin/python scripts/compile_planner.py) .venv/bin/phalanx simulate …

The sources stay as they are: a copy of `src` with the compiled modules in it lies in
`build/compiled/<digest of the sources>`, so that what is found there is never stale. What is compiled is
listed in pyproject.toml under `tool.phalanx.compiled`; the C compiler runs again only when the planner,
the simulator, or what they import has changed. A copy is kept only if it decides as Python does: a part
of the benchmark's stream, streams at the limits of users and slot types, and a small simulation of every
policy are compared to the last digit. `--quick` compiles without optimization and compares nothing: for
the tests, which compare more. Exit code 3: no C compiler, or no mypyc; 1: it could not be compiled, or
decides otherwise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "compiled"
BUILD_FILES = ("pyproject.toml", "setup.py")
# What the compiled modules are, and what they import.
TYPES_FROM = ("core/**/*.py", "kit/**/*.py", "sim/**/*.py", "errors.py")
NOT_POSSIBLE = 3
COMPARED = (
    ("bench/scheduler/scale.py", "40"),
    ("bench/scheduler/user_limits.py", "2"),
    ("-m", "phalanx.sim", "--jobs", "80", "--nodes", "6", "--policy", "all", "--json"),
)
MEASURED = ("_ms", "_mb", "wall_s", "planner")


def missing() -> str:
    """What keeps this machine from compiling, in words; empty if nothing does."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(os.environ.get("CC", compiler).split()[0]):
        return "there is no C compiler (on Debian and Ubuntu: apt-get install gcc)"
    if not importlib.util.find_spec("mypyc"):
        return "there is no mypyc (pip install 'mypy>=2,<3')"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return f"Python's headers are not there: {header}"
    return ""


def compiled(*, quick: bool = False) -> Path:
    """The folder whose `phalanx` is this checkout's with the planner compiled; made if it is not there."""
    source, kind = ROOT / "src" / "phalanx", "quick-" if quick else ""
    tree = KEPT / f"{kind}tree-{_digest(source.rglob('*.py'))}"
    if not tree.exists():
        types = (path for glob in TYPES_FROM for path in source.glob(glob))
        native = KEPT / f"{kind}native-{_digest(types)}"
        if not native.exists():
            _compile(native, quick)
        fresh = _scratch()
        shutil.copytree(ROOT / "src", fresh, ignore=_not_python, dirs_exist_ok=True)
        shutil.copytree(native, fresh, dirs_exist_ok=True)
        if not quick:
            _compare(fresh)
        _keep(fresh, tree)
        _forget_others(kind, tree, native)
    return tree


def _digest(paths: Iterable[Path]) -> str:
    told = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for path in [*(ROOT / name for name in BUILD_FILES), *sorted(paths)]:
        told.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
        told.update(path.read_bytes())
    return told.hexdigest()[:16]


def _compile(native: Path, quick: bool) -> None:
    print("compiling the planner with mypyc: this takes some minutes", file=sys.stderr, flush=True)
    here = _scratch()
    shutil.copytree(ROOT / "src", here / "src", ignore=_not_python)
    for name in (*BUILD_FILES, "README.md", "LICENSE"):
        shutil.copy(ROOT / name, here / name)
    asked = {**os.environ, "PHALANX_COMPILE": "quick" if quick else "1"}
    words = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(words, cwd=here, env=asked, capture_output=True, text=True)
    found = sorted((here / "src").rglob("*.so")) + sorted((here / "src").rglob("*.pyd"))
    if done.returncode or not found:
        sys.exit(f"mypyc failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    fresh = _scratch()
    for path in found:
        to = fresh / path.relative_to(here / "src")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    _keep(fresh, native)
    shutil.rmtree(here)


def _compare(fresh: Path) -> None:
    """Exit unless the copy decides as Python does."""
    for words in COMPARED:
        told = [_told(folder, words) for folder in (ROOT / "src", fresh)]
        if told[0] != told[1]:
            sys.exit(f"compiled, the planner decides otherwise ({' '.join(words)}); kept: {fresh}")


def _told(folder: Path, words: tuple[str, ...]) -> object:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed with {folder}:\n{done.stderr[-4000:]}")
    return _without_times(json.loads(done.stdout))


def _without_times(found: object) -> object:
    """Without what a clock or the memory of a process says, and which planner it was."""
    if isinstance(found, dict):
        kept = {k: v for k, v in found.items() if not k.endswith(MEASURED)}
        return {k: _without_times(v) for k, v in kept.items()}
    return [_without_times(one) for one in found] if isinstance(found, list) else found


def _scratch() -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="new-", dir=KEPT))


def _keep(fresh: Path, at: Path) -> None:
    """Two that compile at once both succeed: the second finds the folder there and drops its own."""
    try:
        fresh.rename(at)
    except OSError:
        shutil.rmtree(fresh)


def _not_python(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__" or name.endswith((".so", ".egg-info"))]


def _forget_others(kind: str, *kept: Path) -> None:
    for path in KEPT.iterdir():
        if path not in kept and path.name.startswith((f"{kind}tree-", f"{kind}native-")):
            shutil.rmtree(path)


def main() -> int:
    why_not = missing()
    if why_not:
        print(f"the planner stays Python: {why_not}", file=sys.stderr)
        return NOT_POSSIBLE
    print(compiled(quick="--quick" in sys.argv[1:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
