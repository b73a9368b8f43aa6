"""Submit to first step on a Ray cluster: Phalanx against Ray Train's own TorchTrainer.

    python bench/on_ray.py [--rounds N] [--ranks 4]

Both run `bench/ray_steps.py` on the same cluster of two raylets on this machine, in alternating order.
Ray Train's time begins when `python` is started with the script, Phalanx's when `phalanx submit` is; both
end with the first optimizer step. The bar for the ratio of the medians is 0.4.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from e2e.ray.raylets import Raylets  # noqa: E402
from e2e.ray.rayplatform import RayPlatform  # noqa: E402

SCRIPT = HERE / "ray_steps.py"


def first_step(trace: Path, began: float) -> float:
    while not trace.exists() or not trace.read_text().strip():
        if time.time() - began > 180:
            raise SystemExit(f"no step: see {trace.parent}")
        time.sleep(0.005)
    return float(trace.read_text().split()[0]) - began


def ray_train(root: Path, address: str, ranks: int, number: int) -> float:
    trace = root / f"train{number}"
    env = dict(os.environ, BENCH_TRACE=str(trace), RAY_USAGE_STATS_ENABLED="0")
    began = time.time()
    with (root / "train.log").open("ab") as log:
        command = [sys.executable, SCRIPT, "--trainer", str(ranks), address]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd="/")
    took = first_step(trace, began)
    process.wait()
    return took


def phalanx(platform: RayPlatform, root: Path, ranks: int, number: int) -> float:
    trace = root / f"phalanx{number}"
    file = root / f"job{number}.json"
    spec = {
        "schema": 1,
        "name": "bench",
        "run": "python ray_steps.py",
        "workdir": str(HERE),
        "pool": "ray",
        "resources": {"nodes": 2, "slots_per_node": ranks // 2},
        "env": {"BENCH_TRACE": str(trace)},
    }
    file.write_text(json.dumps(spec))
    began = time.time()
    job = platform.run("submit", file).stdout.split()[-1]
    took = first_step(trace, began)
    platform.wait_state(job, "succeeded")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-ray"))
    raylets = Raylets(args.ranks // 2, args.ranks // 2, num_cpus=args.ranks)
    platform = RayPlatform(root, raylets)
    ours, theirs = [], []
    try:
        platform.up()
        for number in range(args.rounds):
            theirs.append(ray_train(root, raylets.address, args.ranks, number))
            ours.append(phalanx(platform, root, args.ranks, number))
            print(
                f"round {number}: Ray Train {theirs[-1]:.2f} s, Phalanx {ours[-1]:.2f} s",
                flush=True,
            )
    finally:
        platform.down()
        raylets.close()
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        f"median: Ray Train {statistics.median(theirs):.2f} s, Phalanx {statistics.median(ours):.2f} s"
    )
    print(f"ratio {ratio:.2f} (bar 0.40)")


if __name__ == "__main__":
    main()
