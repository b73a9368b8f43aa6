"""A script without torch that keeps its state in files of its own, as ranks that do not communicate."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

from phalanx.train import folders

STEPS = 24


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    found = folders.newest()
    state, step = b"begun", 0
    if found is not None:
        path, step = found
        state = (path / "deep" / "state").read_bytes()
    began = step
    while step < STEPS:
        step += 1
        state = hashlib.sha256(state + step.to_bytes(4, "big")).digest() * 1000
        time.sleep(args.pause)  # a step of training, during which it is killed
        if step % 3 == 0 and rank == 0:
            here = Path(f"{args.out}.state")
            (here / "deep").mkdir(parents=True, exist_ok=True)
            (here / "deep" / "state").write_bytes(state)
            folders.save(here, step=step)
    said = {"digest": hashlib.sha256(state).hexdigest(), "began": began}
    Path(f"{args.out}.r{rank}.json").write_text(json.dumps(said))


main()
