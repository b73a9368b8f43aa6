"""The benchmark of hyperparameter search: `python -m bench.search [--only economy,handover] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

from bench.search import beside_tune, decisions, economy, handover

PARTS = ("decisions", "economy", "quality", "handover", "tune")
JUDGING = 1000
"""The first seed of the orders that rules are judged on; smaller ones are for tuning."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer orders")
    parser.add_argument("--peers", default="", help="a Python with optuna and syne-tune")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(PARTS)
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    orders = 10 if given.quick else 100
    kept = True
    if "decisions" in wanted:
        kept &= decisions.report(1000 if given.quick else 10_000)
    if "economy" in wanted:
        kept &= economy.report(range(JUDGING, JUDGING + orders))
        if given.peers:
            peers = Path(__file__).with_name("peers.py")
            subprocess.run([given.peers, str(peers), str(JUDGING), str(orders)], check=True)
    if "quality" in wanted and importlib.util.find_spec("bench.search.quality"):
        quality = importlib.import_module("bench.search.quality")
        kept &= bool(quality.report(quick=given.quick))
    if "handover" in wanted:
        kept &= handover.report(quick=given.quick)
    if "tune" in wanted:
        kept &= beside_tune.report(quick=given.quick)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
