"""A job of which one rank runs another torch: other version, and other numbers."""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--odd", type=int, default=-1)
parser.add_argument("--rank", type=int, required=False)
parser.add_argument("--preflight", default="check")
args = parser.parse_args()


class Act(nn.Module):
    odd = False

    def forward(self, x):
        return nn.functional.gelu(x, approximate="tanh" if self.odd else "none")


def main():
    from phalanx.train.gang import context

    if context.read().rank == args.odd:
        torch.__version__ = "2.12.1+cpu"
        Act.odd = True  # as its kernels would
    run = pt.init(seed=1, preflight=args.preflight)
    model = nn.Sequential(nn.Linear(8, 16), Act(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(96, 8)), 8, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(2):
        for (x,) in loader:
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
    if run.is_main:
        bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        Path(f"{args.out}.json").write_text(
            json.dumps({"digest": hashlib.sha256(bits).hexdigest()})
        )
    run.finish()


main()
