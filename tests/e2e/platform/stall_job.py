"""A gang that hangs in one of several ways, or that only takes long over something."""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt

CULPRIT = 1


class Samples(Dataset):
    """Samples of which one blocks for ever, where there is to be one."""

    def __init__(self, size, blocks_at):
        self.size, self.blocks_at, self.count = size, blocks_at, 0

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        self.count += 1
        if self.count == self.blocks_at:
            read, _ = os.pipe()
            os.read(read, 1)
        return torch.randn(8)


def loop_for_ever():
    """A loop that never ends."""
    number = 0
    while True:
        number += 1


def differ():
    """One rank calls another collective than the others."""
    mine = torch.zeros(2)
    if dist.get_rank() == CULPRIT:
        dist.all_gather([torch.zeros(2) for _ in range(dist.get_world_size())], mine)
    else:
        dist.all_reduce(mine)


def validate(seconds):
    """Rank 0 validates alone, and the others wait for it."""
    if dist.get_rank() == 0:
        time.sleep(seconds)
    dist.barrier()


def save_checkpoint(seconds):
    """Rank 0 writes to a slow disk."""
    if dist.get_rank() == 0:
        time.sleep(seconds)
    dist.barrier()


def compile_slowly(model, seconds):
    """A compiler that takes its time, called by torch itself."""

    def backend(graph, _inputs):
        time.sleep(seconds)
        return graph.forward

    torch.compile(model, backend=backend)(torch.zeros(1, 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--at", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=75.0)
    args = parser.parse_args()
    what = args.what if os.environ["PHALANX_GENERATION"] == "0" else "nothing"
    run = pt.init(seed=1)
    model, plain = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    blocks = 2 * args.at if what == "loader" and run.rank == CULPRIT else 0
    loader = DataLoader(Samples(6 * (args.at + 20), blocks), batch_size=2)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(1):
        for x in loader:
            if run.step == args.at:
                if what == "stop" and run.rank == CULPRIT:
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif what == "loop" and run.rank == CULPRIT:
                    loop_for_ever()
                elif what == "collective":
                    differ()
                elif what == "validation":
                    validate(args.seconds)
                elif what == "save":
                    save_checkpoint(args.seconds)
                elif what == "compile":
                    compile_slowly(plain, args.seconds)
                elif what == "step":
                    time.sleep(30.0)
            time.sleep(0.02)
            model(x).sum().backward()
            opt.step()
            opt.zero_grad()
            print(f"{time.time():.3f} step {run.step}", flush=True)


main()
