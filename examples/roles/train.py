"""Trainer and evaluator in one gang: two ranks train, a third one looks at every checkpoint.

phalanx submit examples/roles/job.yaml --follow
phalanx submit examples/roles/unequal.yaml --follow    # all ranks train, on nodes that differ
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt
from phalanx.checkpoint import list_checkpoints
from phalanx.errors import PlatformError
from phalanx.train.state.export import weights_of


def net():
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def samples(seed, count):
    """Points of a function that the model has to learn."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.pow(2).sum(1, keepdim=True).sqrt()


def train(args):
    run = pt.init(seed=0)
    model = net()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(*samples(0, 4096)), batch_size=32, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            run.log(loss=loss)
        if run.is_main:
            print(f"epoch {epoch + 1}/{args.epochs}", flush=True)


def evaluate():
    """Until the trainer is done: then this rank is asked to stop, and looks at the last one.

    What it prints becomes a metric: `metrics` in job.yaml says how.
    """
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    folder = Path(os.environ["PHALANX_LEAD_CHECKPOINT_DIR"])
    x, y = samples(1, 1024)
    seen = set()
    last = False
    while not last:
        time.sleep(0.5)
        last = bool(asked)
        for one in reversed(list_checkpoints(folder)):
            name = one.manifest.name
            if name in seen:
                continue
            seen.add(name)
            try:
                weights, manifest = weights_of(one.path)
                state = {key: value.read() for key, value in weights.items()}
            except (PlatformError, OSError):
                if one.path.exists():
                    raise
                continue  # `keep` deleted it after it was listed
            model = net()
            model.load_state_dict(state)
            with torch.no_grad():
                loss = float(nn.functional.mse_loss(model(x), y))
            print(f"step {manifest.step}: val_loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    evaluate() if os.environ.get("PHALANX_ROLE") == "evaluator" else train(parser.parse_args())
