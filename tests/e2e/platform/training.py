"""A small exactness probe: dropout, augmentation, momentum, a schedule; prints what it ended with.

Rank 0 writes the SHA-256 of parameters, optimizer and scheduler state to `$PROBE_OUT` at the end, and
one line per step to `$PROBE_OUT.steps`.
"""

import argparse
import hashlib
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt


class Noisy(Dataset):
    """Samples whose augmentation draws from the global generators."""

    def __init__(self, num_samples: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(num_samples, 32, generator=generator)
        self.y = torch.randint(0, 8, (num_samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + 0.1 * torch.randn(32), self.y[index]


def digest(*states: object) -> str:
    found = hashlib.sha256()

    def walk(value: object) -> None:
        if isinstance(value, torch.Tensor):
            found.update(str(value.dtype).encode())
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                walk(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                walk(item)
        else:
            found.update(repr(value).encode())

    for state in states:
        walk(state)
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--until", default="", help="no step waits once this file is there")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    out = os.environ["PROBE_OUT"]
    run = pt.init(seed=3)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(32, 96),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(96, 96),
        nn.ReLU(),
        nn.Linear(96, 8),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loader = DataLoader(Noisy(args.samples), batch_size=8, shuffle=True, num_workers=args.workers)
    model, optimizer, schedule, loader = run.prepare(model, optimizer, schedule, loader)
    loss_fn = nn.CrossEntropyLoss()
    with open(f"{out}.steps", "a", buffering=1) as steps:
        for epoch in run.epochs(args.epochs):
            for x, y in loader:
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                run.log(loss=loss)
                if run.is_main:
                    steps.write(f"{time.time()} {epoch} {os.getpid()}\n")
                if args.step_s and not os.path.exists(args.until):
                    time.sleep(args.step_s)
    if run.is_main:
        found = digest(model.state_dict(), optimizer.state_dict(), schedule.state_dict())
        with open(out, "w") as result:
            result.write(found)


if __name__ == "__main__":
    main()
