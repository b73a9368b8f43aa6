"""A small training job of the game days, with one fault of several; it ends once a file is there."""

import argparse
import os
import resource
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt
from phalanx.train.gang import context

CULPRIT = 1


class Samples(Dataset):
    """Samples that take a while where the loader is slow; one is not a number where losses diverge."""

    def __init__(self, fault):
        self.fault = fault

    def __len__(self):
        return 30_000

    def __getitem__(self, at):
        if self.fault == "slow-data":
            time.sleep(0.05)
        x = torch.ones(16) * (at % 7)
        return x * float("nan") if self.fault == "diverge" and at % 40 == 17 else x


def exhaust_memory():
    """Ask for more memory than the process may have."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
    torch.ones(2**28)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "fault", help="slow-rank, slow-data, diverge, memory, versions; none: other words"
    )
    parser.add_argument("--until", required=True, help="end once this file is there")
    args = parser.parse_args()
    culprit = context.read().rank == CULPRIT
    if args.fault == "versions" and culprit:
        torch.__version__ = "2.12.1+cpu"
    run = pt.init(seed=1, straggler_window=10)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Samples(args.fault), batch_size=4, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(100):
        for x in loader:
            if args.fault == "slow-rank":
                time.sleep(0.15 if culprit else 0.03)
            elif args.fault == "memory" and culprit and run.step % 10 == 9:
                exhaust_memory()
            elif args.fault != "slow-data":
                time.sleep(0.05)
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            run.log(loss=loss)
            if os.path.exists(args.until):
                return


main()
