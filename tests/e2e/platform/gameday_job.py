"""A small training job of the game days, with one fault of several; it ends once a file is there."""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt
from phalanx.train.gang import context

CULPRIT = 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", help="slow-rank, versions, or any word for none")
    parser.add_argument("--until", required=True)
    args = parser.parse_args()
    culprit = context.read().rank == CULPRIT
    if args.fault == "versions" and culprit:
        torch.__version__ = "2.12.1+cpu"
    run = pt.init(seed=1, straggler_window=10)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(TensorDataset(torch.ones(30_000, 16)), batch_size=4, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(100):
        for (x,) in loader:
            time.sleep(0.15 if args.fault == "slow-rank" and culprit else 0.04)
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            run.log(loss=loss)
            if os.path.exists(args.until):
                return


main()
