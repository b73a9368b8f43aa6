"""A small training job that logs a loss and an accuracy; its steps wait until a file is there."""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", required=True)
    args = parser.parse_args()
    run = pt.init(seed=3, straggler_window=10)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(480, 32), torch.randint(0, 8, (480,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    loss_fn = nn.CrossEntropyLoss()
    for _ in run.epochs(30):
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss, acc=(out.argmax(1) == y).float().mean())
            if not os.path.exists(args.until):
                time.sleep(0.1)


if __name__ == "__main__":
    main()
