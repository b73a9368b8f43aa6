"""The time from the end of a trial to the first optimizer step of the next, on the same slots.

One trial at a time, in a study of a control plane of its own, with 1 rank and with 3. Cold: with
`warm: {enabled: false}`. Warm: as studies run by default.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).with_name("handover_trial.py")
BARS = {1: 0.3, 3: 0.6}
"""Seconds by the number of ranks."""
_SKIPPED = 2
"""Trials at the start of a study before the process that is kept warm exists."""


def study(ranks: int, trials: int, trace: Path, *, warm: bool) -> str:
    """A study of trials that run one after another."""
    return yaml.safe_dump(
        {
            "schema": 1,
            "kind": "study",
            "name": "handover",
            "objective": {"metric": "loss"},
            "search": {"method": "grid"},
            "space": {"x": {"values": list(range(trials))}},
            "trials": {"parallel": 1},
            "job": {
                "run": [sys.executable, str(SCRIPT)],
                "framework": "torch",
                "env": {"BENCH_TRACE": str(trace)},
                "resources": {"nodes": 1, "slots_per_node": ranks},
                "warm": {"enabled": warm},
            },
        }
    )


def gaps(ranks: int, trials: int, *, warm: bool) -> list[float]:
    """Seconds from the last line of each trial's script to the first step of the next."""
    with tempfile.TemporaryDirectory(prefix="phalanx-handover-") as folder:
        root = Path(folder)
        trace = root / "trace"
        trace.mkdir()
        (root / "study.yaml").write_text(study(ranks, trials, trace, warm=warm))
        env = {**os.environ, "PHALANX_HOME": str(root / "home"), "NO_COLOR": "1"}
        try:
            with (root / "log").open("wb") as log:
                command = [BIN / "phalanx", "sweep", "study.yaml"]
                code = subprocess.run(
                    command, env=env, cwd=root, stdout=log, stderr=log, timeout=900, check=False
                ).returncode
            if code != 0:
                raise SystemExit((root / "log").read_text())
            return _gaps(trace, trials, ranks)
        finally:
            server = json.loads((root / "home" / "server.json").read_text())
            os.kill(server["pid"], signal.SIGTERM)


def _gaps(trace: Path, trials: int, ranks: int) -> list[float]:
    times = []
    for trial in range(trials):
        files = [trace / f"{trial}-{rank}" for rank in range(ranks)]
        marks = [tuple(map(float, file.read_text().split())) for file in files]
        first, end = max(one[1] for one in marks), max(one[2] for one in marks)
        times.append((first, end))
    times.sort()
    return [then[0] - now[1] for now, then in itertools.pairwise(times)]


def report(*, quick: bool) -> bool:
    """Measure and print; returns whether each median is within its bar."""
    trials = 8 if quick else 22
    kept = True
    print("\nend of a trial -> first step of the next, seconds")
    for ranks, bar in BARS.items():
        for warm in (False, True):
            found = gaps(ranks, 6 if not warm else trials, warm=warm)[_SKIPPED:]
            middle, most = statistics.median(found), max(found)
            kind = "warm" if warm else "cold"
            said = f"  {ranks} rank(s), {kind}: median {middle:.2f}, max {most:.2f} of {len(found)}"
            if warm:
                kept &= middle <= bar
                said += f" (bar {bar}: {'ok' if middle <= bar else 'missed'})"
            print(said, flush=True)
    return kept
