"""A small network on handwritten digits, as the trial of a study: params come in, a report goes out."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt


def main():
    run = pt.init(seed=0)
    width, lr = int(run.params.get("width", 32)), float(run.params.get("lr", 1e-3))
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32) / 16
    y = torch.tensor(labels)
    held_out = torch.arange(len(y)) % 5 == 0
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    loader = DataLoader(TensorDataset(x[~held_out], y[~held_out]), batch_size=64, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for epoch in run.epochs(9):
        for images, labels in loader:
            functional.cross_entropy(model(images), labels).backward()
            opt.step()
            opt.zero_grad()
        with torch.no_grad():
            loss = functional.cross_entropy(model(x[held_out]), y[held_out]).item()
        run.report(epoch=epoch, val_loss=loss)


if __name__ == "__main__":
    main()
