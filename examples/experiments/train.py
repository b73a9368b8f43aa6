"""Fit a line by gradient descent, and print the loss of each step.

    phalanx submit examples/experiments/slow.yaml examples/experiments/fast.yaml
    phalanx compare --query group:line

The step size comes from the command, the rest from a file. The script uses no library.
"""

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, required=True)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
settings = json.loads(args.config.read_text())
points = [(x / 10, settings["data"]["slope"] * x / 10) for x in range(10)]
slope = 0.0
for step in range(settings["steps"]):
    gradient = sum(2 * (slope * x - y) * x for x, y in points) / len(points)
    slope -= args.lr * gradient
    loss = sum((slope * x - y) ** 2 for x, y in points) / len(points)
    print(f"step {step}: loss {loss}", flush=True)
