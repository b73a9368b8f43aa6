"""A job with one weakness at a time: its profile must name it."""

import argparse
import hashlib
import json
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt


class Samples(Dataset):
    def __init__(self, count, width, slow_ms):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, width, generator=generator)
        self.slow_s = slow_ms / 1e3

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        if self.slow_s:
            threading.Event().wait(self.slow_s)
        return self.x[at]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--load-ms", type=float, default=0.0)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--at", type=int, default=0, help="run.profile() before this step")
    parser.add_argument("--trace", type=int, default=2)
    parser.add_argument("--extras", default="")
    parser.add_argument("--for-ever", action="store_true")
    return parser.parse_args()


def main():
    args = arguments()
    run = pt.init(seed=3)
    model = nn.Sequential(*[nn.Linear(args.width, args.width) for _ in range(args.depth)])
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    count = args.steps * args.batch * run.world_size
    loader = DataLoader(Samples(count, args.width, args.load_ms), args.batch, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(1_000_000 if args.for_ever else 1):
        for x in loader:
            if run.step + 1 == args.at:
                run.profile(steps=6, trace=args.trace, extras=args.extras.split())
            y = model(x)
            if run.rank == args.slow_rank:
                until = time.perf_counter() + args.slow_ms / 1e3
                while time.perf_counter() < until:  # it computes
                    y = y + 0 * (x @ x.T).sum()
            y.square().mean().backward()
            opt.step()
            opt.zero_grad()
    if run.is_main:
        bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        digest = hashlib.sha256(bits).hexdigest()
        Path(f"{args.out}.json").write_text(json.dumps({"digest": digest, "step": run.step}))
    run.finish()


main()
