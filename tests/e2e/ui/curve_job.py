"""A job without the training library: it posts curves, prints lines, and waits or fails."""

import argparse
import json
import math
import os
import signal
import sys
import urllib.request

POINTS = 1000


def post(points: list[dict]) -> None:
    request = urllib.request.Request(
        os.environ["PHALANX_METRICS_URL"],
        json.dumps({"points": points}).encode(),
        {
            "Authorization": f"Bearer {os.environ['PHALANX_METRICS_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    urllib.request.urlopen(request).close()


def points_of(first: int, last: int) -> list[dict]:
    found = []
    for step in range(first, last):
        loss = 2.2 * math.exp(-step / 2500) + 0.15 + 0.08 * math.sin(step * 12.9898) ** 3
        broken = 4000 <= step < 4003
        found.append({"name": "train/loss", "step": step, "value": "nan" if broken else loss})
        if step % 100 == 0:
            acc = 1 - math.exp(-step / 2000) * 0.9
            found.append({"name": "val/accuracy", "step": step, "value": acc})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--end", choices=["wait", "fail", "return"], default="return")
    args = parser.parse_args()
    for first in range(0, args.steps, POINTS // 2):
        post(points_of(first, min(args.steps, first + POINTS // 2)))
    for line in range(args.lines):
        print(f"2026-11-28 12:00:00 INFO step {line}: \x1b[32mloss\x1b[0m {2 / (line + 1):.4f}")
    print("WARNING: 3 shards of the data were empty", file=sys.stderr, flush=True)
    if args.end == "fail":
        settings: dict[str, float] = {}
        print(settings["learning_rate"])
    if args.end == "wait":
        signal.pause()


if __name__ == "__main__":
    main()
