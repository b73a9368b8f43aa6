"""Finished runs that are kept in a folder, and used again as long as they would come out the same.

A kept run has a key: a digest of its jobs and its cluster, of the constants of its policy, and of the
sources that decide (without comments and docstrings). For a peer these are the simulator and the peers; for
the production planner those of the planner, too. Peers run once and the planner again after each change.
Peers also use the planner's index of the cluster; a row names the planner that it was made with, and
`run.py --fresh` makes all rows anew.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SchedulingPolicy, SimulationSetup
from phalanx.sim.peers.catalog import Blind, Production

FOLDER = Path(__file__).with_name("kept")
"""Where the rows of the sets of jobs are kept in the repository."""
_SOURCES = Path(__file__).resolve().parents[2] / "src" / "phalanx"
_SIMULATOR = (
    "sim/cluster",
    "sim/peers",
    "sim/output",
    "sim/jobs.py",
    "sim/costs.py",
    "sim/model.py",
)
_PLANNER = ("core/scheduling", "core/gang/placement.py")
_LENGTH = 12


@cache
def planner_digest() -> str:
    """A digest of the planner's sources."""
    return _digest_of(_PLANNER)


@cache
def _simulator_digest() -> str:
    return _digest_of(_SIMULATOR)


def _digest_of(names: Iterable[str]) -> str:
    found: list[Path] = []
    for name in names:
        path = _SOURCES / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    told = hashlib.sha256()
    for path in found:
        told.update(f"{path.relative_to(_SOURCES)}\n{meaning(path.read_text())}\n".encode())
    return told.hexdigest()[:_LENGTH]


def meaning(source: str) -> str:
    """The syntax tree of a module as text, without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def workload_digest(jobs: Sequence[TraceJob], setup: SimulationSetup) -> str:
    """A digest of the jobs and of the cluster, its quotas, costs and outages."""
    told = hashlib.sha256()
    for job in jobs:
        told.update(repr(job).encode())
    for one in dataclasses.fields(setup):
        if one.name != "config":  # the planner's constants belong to its own digest
            told.update(f"{one.name} {getattr(setup, one.name)!r}".encode())
    return told.hexdigest()[:_LENGTH]


def key_of(workload: str, make: Callable[..., SchedulingPolicy], setup: SimulationSetup) -> str:
    """The key of a run of one policy on a workload."""
    constants: Any = ()
    maker: Any = make
    if isinstance(make, partial):
        maker, constants = make.func, (make.args, sorted(make.keywords.items()))
    parts = [workload, _simulator_digest(), _named(maker), json.dumps(constants, default=_named)]
    if maker in (Production, Blind):
        parts += [planner_digest(), repr(setup.config)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_LENGTH]


def _named(thing: object) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))


@dataclasses.dataclass
class KeptRuns:
    """The kept runs of one scenario with one seed: a file of JSON lines, one for each run.

    One process at a time may use a file.
    """

    path: Path

    def __post_init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            rows = map(json.loads, self.path.read_text().splitlines())
            self._rows = {row["run"]: row for row in rows}

    def get(self, run: str, key: str) -> dict[str, Any] | None:
        """A kept run; None if there is none with this key."""
        found = self._rows.get(run)
        return found if found is not None and found["key"] == key else None

    def put(self, run: str, key: str, row: Mapping[str, Any], more: Mapping[str, float]) -> None:
        """Keep a run; it replaces an older one of the same name."""
        kept = {"row": _rounded(row), "more": _rounded(more)}
        self._rows[run] = {"run": run, "key": key, "planner": planner_digest(), **kept}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(self._rows[name], separators=(",", ":")) for name in sorted(self._rows)]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.path)


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of a delay in hours are its fourth digit."""
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()}
