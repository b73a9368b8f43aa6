"""Speed of checkpoints: save and load bandwidth against dd, and the stall of a save in the background.

    python bench/checkpoint.py [--gib 2] [--rounds 7] [--folder PATH]

Every round does each thing once, in turn, so that all meet the same disk; medians are compared. One
process, one rank, digests included. `dd` writes with conv=fsync and reads what is in the page cache.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from phalanx import checkpoint
from phalanx.core.checkpoints import Keep, Position
from phalanx.kit.clock import SystemClock
from phalanx.train import restoring
from phalanx.train.context import RankInfo
from phalanx.train.groups import Solo
from phalanx.train.report import NoReport
from phalanx.train.saving import CheckpointDirectory, Moment
from phalanx.train.staging import Direct, Staging

WIDTH = 4096


def build(gib):
    """A model with AdamW state of about `gib` GiB together."""
    layers = max(1, round(gib * 2**30 / 3 / 4 / (WIDTH * WIDTH)))
    with torch.no_grad():
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for one in model.parameters():
            opt.state[one] = {
                "step": torch.tensor(1.0), "exp_avg": torch.randn_like(one),
                "exp_avg_sq": torch.rand_like(one),
            }  # fmt: skip
    return model, opt


def saver_for(folder, staging, model, opt):
    saver = CheckpointDirectory(
        folder, RankInfo(keep=Keep(1)), Solo(), NoReport(), SystemClock(), checkpoint.LocalDisk(),
        staging,
    )  # fmt: skip
    saver.watch([model], [opt], "single")
    return saver


def state_of(model, opt):
    return {
        "models": [model.state_dict()], "optimizers": [restoring.optimizer_state(opt)],
        "state": {}, "tracked": {},
    }  # fmt: skip


def moment(step):
    return Moment(step=step, position=Position(), why="every", rng=b"")


def timed(work):
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def dd(*words):
    subprocess.run(["dd", "bs=1M", *words], check=True, stderr=subprocess.DEVNULL)


def load(saver, model, opt):
    restored = saver.open()
    restoring.model(model, restored.state["models"][0], "bench")
    restoring.optimizer(opt, restored.state["optimizers"][0], "bench")


def bandwidth(folder, gib, rounds):
    model, opt = build(gib)
    saver = saver_for(folder / "store", Direct(), model, opt)
    source, target = folder / "source", folder / "target"
    size = sum(
        one.numel() * 4
        for one in [*model.parameters(), *(t for s in opt.state.values() for t in s.values())]
    )
    with source.open("wb") as file:
        for _ in range(size // 2**24 + 1):
            file.write(os.urandom(2**20) * 16)
    times = {"dd_write": [], "save": [], "dd_read": [], "load": []}
    for step in range(1, rounds + 2):
        dd_write = timed(lambda: dd(f"if={source}", f"of={target}", "conv=fsync"))
        save = timed(lambda step=step: saver.save(lambda: state_of(model, opt), moment(step)))
        path = checkpoint.list_checkpoints(folder / "store")[0].path
        shard = path / "shard-00000/state.tensors"
        dd(f"if={shard}", "of=/dev/null")
        dd_read = timed(lambda shard=shard: dd(f"if={shard}", "of=/dev/null"))
        loading = timed(lambda: load(saver, model, opt))
        if step > 1:  # the first round warms everything up
            for name, took in zip(times, (dd_write, save, dd_read, loading), strict=True):
                times[name].append(took)
        target.unlink()
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "state_gib": round(size / 2**30, 3),
        "gb_per_s": {name: round(size / 1e9 / took, 3) for name, took in median.items()},
        "save_against_dd": round(median["dd_write"] / median["save"], 3),
        "load_against_dd": round(median["dd_read"] / median["load"], 3),
    }


def stall(folder, gib, rounds):
    """How long `save` keeps the caller; beside a copy of the state and torch.save with fsync."""
    model, opt = build(gib)
    saver = saver_for(folder / "async", Staging(), model, opt)
    tensors = [*model.parameters(), *(t for s in opt.state.values() for t in s.values())]
    copies = [torch.empty_like(one) for one in tensors]

    def memcpy():
        with torch.no_grad():
            for one, copy in zip(tensors, copies, strict=True):
                copy.copy_(one)

    def plain():
        with (folder / "plain.pt").open("wb") as file:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())

    times = {"memcpy": [], "stall": [], "torch_save": []}
    for step in range(1, rounds + 2):
        copying = timed(memcpy)
        stalled = timed(lambda step=step: saver.save(lambda: state_of(model, opt), moment(step)))
        assert saver.wait()
        saving = timed(plain)
        if step > 1:
            for name, took in zip(times, (copying, stalled, saving), strict=True):
                times[name].append(took)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "seconds": {name: round(took, 4) for name, took in median.items()},
        "stall_against_memcpy": round(median["stall"] / median["memcpy"], 3),
        "stall_against_torch_save": round(median["stall"] / median["torch_save"], 3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--stall-gib", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="phalanx-bench-", dir=wanted.folder))
    try:
        found = {"stall": stall(folder, wanted.stall_gib, wanted.rounds)}
        shutil.rmtree(folder)
        folder.mkdir()
        found["bandwidth"] = bandwidth(folder, wanted.gib, wanted.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
