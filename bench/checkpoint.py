"""Checkpoints: bandwidth against dd, memory, and what a save in the background costs training.

    python bench/checkpoint.py [--only bandwidth|stall|memory|store] [--gib 2] [--rounds 7] [--folder PATH]

Every round does each thing once, in turn, so that all meet the same disk; medians are compared. One
process, one rank, digests included. `dd` writes with conv=fsync and reads what is in the page cache.
`floor` reads the same file into memory that exists already, in chunks, on as many threads, with the
same digest: no load can be faster here.

`store` needs rclone, which serves a folder as S3: a checkpoint that is committed in the store, with nothing
near when it is loaded, against one object of as many bytes through the store's own client (obstore).
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from phalanx import checkpoint
from phalanx.checkpoint import verified_reads
from phalanx.checkpoint.digest import CHUNK_BYTES, Digest
from phalanx.checkpoint.remote_store import open_store
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.core.training.checkpoints import Keep, Position
from phalanx.kit.clock import SystemClock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.gang.report import NoReport
from phalanx.train.state import restoring
from phalanx.train.state.resuming import Resumption
from phalanx.train.state.saving import CheckpointDirectory, SaveRequest
from phalanx.train.state.sharding import empty
from phalanx.train.state.staging import NoStaging, Staging
from phalanx.train.state.storage import CheckpointStorage

WIDTH = 4096


def filled(shape):
    """Random-looking values in large pages: to draw gibibytes of them would take minutes."""
    tensor = empty(shape, torch.float32)
    block = torch.randn(2**20)
    flat = tensor.reshape(-1)
    for at in range(0, flat.numel(), 2**20):
        flat[at : at + 2**20] = block[: flat.numel() - at]
    return tensor


def build(gib):
    """A model with AdamW state of about `gib` GiB together."""
    layers = max(1, round(gib * 2**30 / 3 / 4 / (WIDTH * WIDTH)))
    with torch.no_grad():
        model = nn.Sequential(
            *[nn.utils.skip_init(nn.Linear, WIDTH, WIDTH, bias=False) for _ in range(layers)]
        )
        for layer in model:
            layer.weight = nn.Parameter(filled((WIDTH, WIDTH)))
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for one in model.parameters():
            opt.state[one] = {
                "step": torch.tensor(1.0),
                "exp_avg": filled(one.shape),
                "exp_avg_sq": filled(one.shape),
            }
    return model, opt


def saver_for(folder, staging, model, opt, storage=None):
    saver = CheckpointDirectory(
        folder,
        RankInfo(checkpoint=CheckpointPolicy(keep=Keep(2))),
        LocalChannel(),
        NoReport(),
        SystemClock(),
        checkpoint.Disk(),
        staging,
        storage,
    )
    saver.watch([model], [opt], "single")
    return saver


def state_of(model, opt):
    return {
        "models": [model.state_dict()],
        "optimizers": [restoring.optimizer_state(opt)],
        "state": {},
        "tracked": {},
    }


def moment(step):
    return SaveRequest(step=step, position=Position(), why="every", rng=b"")


def timed(work):
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def dd(*words):
    subprocess.run(["dd", "bs=1M", *words], check=True, stderr=subprocess.DEVNULL)


def load(saver, model, opt):
    resumption = Resumption(saver)
    resumption.open()
    resumption.put(lambda one: restoring.model(model, one.state["models"][0], "bench"))
    resumption.put(lambda one: restoring.optimizer(opt, one.state["optimizers"][0], "bench"))
    assert resumption.settle()


def floor_of(path, room):
    """Read a file into `room` and digest it, chunk by chunk, on two threads."""
    fd = os.open(path, os.O_RDONLY)
    size = min(os.fstat(fd).st_size, len(room))

    def chunk(at):
        digest = Digest()
        for lo in range(at, min(at + CHUNK_BYTES, size), 2**20):
            view = room[lo : min(lo + 2**20, size)]
            os.preadv(fd, [view], lo)
            digest.update(view)

    verified_reads.in_threads([partial(chunk, at) for at in range(0, size, CHUNK_BYTES)])
    os.close(fd)


def size_of(model, opt):
    tensors = [*model.parameters(), *(t for s in opt.state.values() for t in s.values())]
    return sum(one.numel() * one.element_size() for one in tensors)


def medians(times):
    return {name: statistics.median(values) for name, values in times.items()}


def bandwidth(folder, gib, rounds):
    model, opt = build(gib)
    saver = saver_for(folder / "store", NoStaging(), model, opt)
    source, target = folder / "source", folder / "target"
    size = size_of(model, opt)
    with source.open("wb") as file:
        for _ in range(size // 2**24 + 1):
            file.write(os.urandom(2**20) * 16)
        file.flush()
        os.fsync(file.fileno())
    room = memoryview(empty((size,), torch.uint8).fill_(1).numpy())
    names = ("dd_write", "save", "dd_read", "floor", "load", "load_new_state")
    times = {name: [] for name in names}
    for step in range(1, rounds + 2):
        dd_write = timed(lambda: dd(f"if={source}", f"of={target}", "conv=fsync"))
        target.unlink()
        save = timed(lambda step=step: saver.save(lambda: state_of(model, opt), moment(step)))
        path = checkpoint.list_checkpoints(folder / "store")[0].path
        shard = path / "shard-00000/state.tensors"
        dd(f"if={shard}", "of=/dev/null")
        dd_read = timed(lambda shard=shard: dd(f"if={shard}", "of=/dev/null"))
        floor = timed(lambda shard=shard: floor_of(shard, room))
        loading = timed(lambda: load(saver, model, opt))
        opt.state.clear()
        new = timed(lambda: load(saver, model, opt))
        if step > 1:  # the first round warms everything up, and has no checkpoint to fall back to
            found = (dd_write, save, dd_read, floor, loading, new)
            for name, took in zip(names, found, strict=True):
                times[name].append(took)
    median = medians(times)
    return {
        "state_gib": round(size / 2**30, 3),
        "gb_per_s": {name: round(size / 1e9 / took, 3) for name, took in median.items()},
        "save_against_dd": round(median["dd_write"] / median["save"], 3),
        "load_against_dd": round(median["dd_read"] / median["load"], 3),
        "load_against_floor": round(median["floor"] / median["load"], 3),
    }


STEPS = 20


def stall(folder, gib, rounds):
    """What 20 steps with a save among them take longer than 20 without one."""
    torch.set_num_threads(1)  # the other core writes, as it does where an accelerator computes
    model, opt = build(gib)
    saver = saver_for(folder / "async", Staging(), model, opt)
    tensors = [*model.parameters(), *(t for s in opt.state.values() for t in s.values())]
    copies = [empty(one.shape, one.dtype).copy_(one.detach()) for one in tensors]
    x = torch.randn(64, WIDTH)

    def memcpy():
        with torch.no_grad():
            for one, copy in zip(tensors, copies, strict=True):
                copy.copy_(one)

    def plain():
        with (folder / "plain.pt").open("wb") as file:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())

    def steps(save):
        for at in range(STEPS):
            model[at % len(model)](x).square().mean().backward()
            with torch.no_grad():
                for one in model[at % len(model)].parameters():
                    one.add_(one.grad, alpha=-1e-6)
                    one.grad = None
            if at == 0:
                save()

    names = ("memcpy", "steps", "call", "excess", "sync_excess")
    times = {name: [] for name in names}
    calls = []
    for step in range(1, rounds + 2):

        def saving(step=step):
            began = time.perf_counter()  # no collection of garbage here: it would count as excess
            saver.save(lambda: state_of(model, opt), moment(step))
            calls.append(time.perf_counter() - began)

        copying = timed(memcpy)
        before = timed(lambda: steps(lambda: None))
        saved = timed(lambda: steps(saving))
        assert saver.wait()
        after = timed(lambda: steps(lambda: None))
        blocked = timed(lambda: steps(plain))
        usual = (before + after) / 2
        if step > 1:
            found = (copying, usual, calls[-1], saved - usual, blocked - usual)
            for name, took in zip(names, found, strict=True):
                times[name].append(took)
    median = medians(times)
    return {
        "state_gib": round(size_of(model, opt) / 2**30, 3),
        "seconds": {name: round(took, 4) for name, took in median.items()},
        "first_call_s": round(calls[0], 4),
        "excess_against_memcpy": round(median["excess"] / median["memcpy"], 3),
        "excess_against_torch_save": round(median["excess"] / median["sync_excess"], 3),
    }


def peak_of(work):
    """Seconds, and how far the memory of this process rose above what it was."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_of("VmRSS")
    took = timed(work)
    return round(took, 2), round((memory_of("VmHWM") - before) / 2**30, 3)


def memory_of(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def memory(folder, gib, rounds):
    """Seconds and memory of one save and one load of a great state, into what exists already."""
    model, opt = build(gib)
    saver = saver_for(folder / "store", NoStaging(), model, opt)
    saved = peak_of(lambda: saver.save(lambda: state_of(model, opt), moment(1)))
    shard = next((folder / "store").glob("step-*/shard-00000/state.tensors"))
    loaded = peak_of(lambda: load(saver, model, opt))
    size = shard.stat().st_size
    names = ("seconds", "gib_above_the_state")
    return {
        "state_gb": round(size / 1e9, 2),
        "save": dict(zip(names, saved, strict=True)),
        "load": dict(zip(names, loaded, strict=True)),
    }


def store(folder, gib, rounds):
    """Save and load through a store, and the same bytes through its client, in turn."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support.s3 import KEY, SECRET, s3_server

    model, opt = build(gib)
    with s3_server(folder / "s3") as server:
        os.environ |= {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        url, near = "s3://bucket/bench", folder / "near"
        tier = StoreFirstTier(url, near, Keep(2), lambda _kind, _said: None, (1, 0))
        storage = CheckpointStorage(tier, store_first=tier)
        saver = saver_for(near, NoStaging(), model, opt, storage)
        try:
            return _through_the_store(saver, open_store(url, os.environ), near, model, opt, rounds)
        finally:
            tier.leave()


def _through_the_store(saver, client, near, model, opt, rounds):
    size = size_of(model, opt)
    plain = empty((size,), torch.uint8).numpy()
    block = np.frombuffer(np.random.default_rng(0).bytes(2**24), dtype=np.uint8)
    plain[:] = np.resize(block, size)
    own = client._client
    names = ("client_put", "save", "client_get", "load")
    times = {name: [] for name in names}
    for step in range(1, rounds + 2):
        put = timed(lambda: own.put("plain", memoryview(plain)))
        saved = timed(lambda step=step: saver.save(lambda: state_of(model, opt), moment(step)))
        shutil.rmtree(near)
        got = timed(lambda: own.get("plain").bytes())
        loaded = timed(lambda: load(saver, model, opt))
        if step > 1:
            for name, took in zip(names, (put, saved, got, loaded), strict=True):
                times[name].append(took)
    median = medians(times)
    return {
        "state_gib": round(size / 2**30, 3),
        "gb_per_s": {name: round(size / 1e9 / took, 3) for name, took in median.items()},
        "save_against_client": round(median["client_put"] / median["save"], 3),
        "load_against_client": round(median["client_get"] / median["load"], 3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["bandwidth", "stall", "memory", "store"])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--stall-gib", type=float, default=0.5)
    parser.add_argument("--memory-gib", type=float, default=9.4)
    parser.add_argument("--store-gib", type=float, default=0.75)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    wanted = parser.parse_args()
    sizes = {"stall": wanted.stall_gib, "bandwidth": wanted.gib, "memory": wanted.memory_gib}
    sizes["store"] = wanted.store_gib
    works = {"stall": stall, "bandwidth": bandwidth, "memory": memory, "store": store}
    for name, work in works.items():
        if wanted.only not in (None, name):
            continue
        folder = Path(tempfile.mkdtemp(prefix="phalanx-bench-", dir=wanted.folder))
        try:
            print(json.dumps({name: work(folder, sizes[name], wanted.rounds)}, indent=1))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
