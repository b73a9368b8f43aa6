"""A stream that knows where it is: exact position for an iterable data set.

phalanx submit examples/data/stream.yaml --follow     # kill it at any time: each sample is used once
phalanx submit examples/data/shares.yaml --follow     # rank 0 computes two thirds of every batch
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import phalanx.train as pt


class Readings(IterableDataset):
    """A long log of readings, read from front to back; `state_dict` makes a resume cheap."""

    fingerprint = "readings:v1"

    def __init__(self, num):
        self.num, self.at = num, 0

    def __len__(self):
        return self.num

    def __iter__(self):
        while self.at < self.num:
            self.at += 1
            x = torch.sin(torch.arange(8.0) * self.at / 7) + 0.05 * torch.randn(8)
            yield x[:7], x[7:]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    run = pt.init(seed=0)
    model = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(Readings(args.samples), batch_size=12, num_workers=1)
    model, opt, loader = run.prepare(model, opt, loader)
    for _epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            run.log(loss=loss)


if __name__ == "__main__":
    main()
