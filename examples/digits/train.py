"""Handwritten digits with a small residual network: real data, no download, any number of ranks.

phalanx run examples/digits/train.py -n 3 -- --epochs 5
torchrun --nproc-per-node 3 examples/digits/train.py --epochs 5
python examples/digits/train.py --epochs 5
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        inner = functional.relu(self.norm1(self.first(x)))
        return functional.relu(x + self.norm2(self.second(inner)))


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.body = nn.Sequential(
            Residual(width), nn.MaxPool2d(2), Residual(width), nn.Dropout(0.1)
        )
        self.head = nn.Linear(width * 16, 10)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).flatten(1))


def digits():
    """1797 images of 8 by 8 pixels; every fifth is held out."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(bunch.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return (
        TensorDataset(images[~held_out], labels[~held_out]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def evaluate(run, model, loader):
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            seen += len(y)
    model.train()
    right, seen = run.all_reduce_sum(right, seen)
    return right / seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="data loading processes per rank")
    args = parser.parse_args()

    run = pt.init(seed=args.seed)
    train_set, test_set = digits()
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    test_loader = run.eval_loader(DataLoader(test_set, batch_size=256))
    steps = max(1, args.epochs * len(train_set) // (args.batch_size * run.world_size))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad()
            run.log(loss=loss)
        accuracy = evaluate(run, model, test_loader)
        run.log(val_acc=accuracy)
        if run.is_main:
            print(f"epoch {epoch + 1}/{args.epochs}  val_acc {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
