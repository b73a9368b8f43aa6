"""A tiny data-parallel training whose rank 0 writes down when each optimizer step completed.

Runs unmodified under `phalanx run`, `torchrun` and alone: it is the common script of the benchmarks.
"""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt

STEPS_PER_EPOCH = 100


def main() -> None:
    num_steps = int(os.environ.get("BENCH_STEPS", "400"))
    trace = os.environ["BENCH_TRACE"]
    run = pt.init(seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    samples = 32 * run.world_size * STEPS_PER_EPOCH
    data = TensorDataset(
        torch.randn(samples, 64, generator=generator),
        torch.randint(0, 10, (samples,), generator=generator),
    )
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    loss_fn = nn.CrossEntropyLoss()
    with open(trace, "a", buffering=1) as out:
        for _ in run.epochs(num_steps // STEPS_PER_EPOCH + 1):
            for x, y in loader:
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss)
                if run.is_main:
                    out.write(f"{time.time():.6f} {os.getpid()}\n")
                time.sleep(float(os.environ.get("BENCH_STEP_S", "0.02")))


if __name__ == "__main__":
    main()
