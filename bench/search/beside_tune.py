"""Many short trials on this machine, beside Ray Tune in the same run: 80 trials of 1 s on 8 slots.

Both start from nothing: a control plane of its own, a Ray of its own. Rounds alternate. Needs Ray
(`make .venv/.ray`). Judged is the whole time; the time of the search alone is printed with it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

BIN = Path(sys.executable).parent
SLOTS, TRIALS = 8, 80
BAR = 0.5
"""Our time as a part of Tune's."""
# One round of Tune; it prints the seconds of the search.
TUNE = f"""
import time, ray
from ray import tune

def trial(config):
    time.sleep(1.0)
    tune.report({{"loss": config["x"]}})

ray.init(num_cpus={SLOTS}, include_dashboard=False, log_to_driver=False)
began = time.monotonic()
space = {{"x": tune.grid_search(list(range({TRIALS})))}}
found = tune.Tuner(trial, param_space=space, run_config=tune.RunConfig(verbose=0)).fit()
assert len(found) == {TRIALS} and not found.num_errors
print("SEARCH", time.monotonic() - began)
"""
TRIAL = """
import time
import phalanx.train as pt

run = pt.init()
time.sleep(1.0)
run.report(epoch=0, loss=run.params["x"])
"""


def _tune(root: Path) -> float:
    env = {**os.environ, "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "HOME": str(root)}
    command = [sys.executable, "-c", TUNE]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.rpartition("SEARCH")[2])


def _phalanx(root: Path) -> float:
    study = {
        "kind": "study",
        "name": "short",
        "objective": {"metric": "loss"},
        "search": {"method": "grid"},
        "space": {"x": {"values": list(range(TRIALS))}},
        "trials": {"parallel": SLOTS},
        "job": {"run": [sys.executable, "trial.py"], "resources": {"nodes": 1}},
    }
    (root / "study.yaml").write_text(yaml.safe_dump(study))
    (root / "trial.py").write_text(TRIAL)
    env = {**os.environ, "PHALANX_HOME": str(root / "home"), "NO_COLOR": "1"}
    with (root / "log").open("wb") as log:
        up = [BIN / "phalanx", "up", "--slots", str(SLOTS), "--port", "0"]
        server = subprocess.Popen(up, env=env, cwd=root, stdout=log, stderr=log)
        try:
            while not (root / "home" / "server.json").exists() and server.poll() is None:
                time.sleep(0.05)
            began = time.monotonic()
            sweep = [BIN / "phalanx", "sweep", "study.yaml"]
            code = subprocess.run(sweep, env=env, cwd=root, stdout=log, stderr=log, check=False)
            took = time.monotonic() - began
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    if code.returncode:
        raise SystemExit((root / "log").read_text())
    return took


def report(*, quick: bool) -> bool:
    """Measure and print; returns whether the median of the ratios is within the bar."""
    if importlib.util.find_spec("ray") is None:
        print("\nbeside Ray Tune: not run, Ray is missing (make .venv/.ray)")
        return False
    print(f"\n{TRIALS} trials of 1 s on {SLOTS} slots, seconds (ideal {TRIALS // SLOTS})")
    ratios = []
    for _ in range(1 if quick else 3):
        whole, search = {}, {}
        for name, run in (("phalanx", _phalanx), ("tune", _tune)):
            with tempfile.TemporaryDirectory(prefix="phalanx-tune-") as folder:
                began = time.monotonic()
                search[name] = run(Path(folder))
                whole[name] = time.monotonic() - began
        ratios.append(whole["phalanx"] / whole["tune"])
        said = ", ".join(f"{one} {whole[one]:.1f} (search {search[one]:.1f})" for one in whole)
        print(f"  {said}: {ratios[-1]:.2f}", flush=True)
    middle = statistics.median(ratios)
    print(f"  median {middle:.2f} (bar {BAR}: {'ok' if middle <= BAR else 'missed'})")
    return middle <= BAR
