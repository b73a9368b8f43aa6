"""A trial that trains a few steps and writes down when it began, stepped and ended."""

import os
import time

BEGAN = time.time()
import torch  # noqa: E402
from torch import nn  # noqa: E402

import phalanx.train as pt  # noqa: E402


def main() -> None:
    run = pt.init(seed=0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    marks = []
    for _ in range(3):
        loss = model(torch.ones(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        marks.append(time.time())
    run.report(epoch=0, loss=float(loss))
    name = f"{run.params['x']}-{run.rank}"
    with open(os.path.join(os.environ["BENCH_TRACE"], name), "w") as out:
        out.write(f"{BEGAN:.6f} {marks[0]:.6f} {time.time():.6f}\n")


if __name__ == "__main__":
    main()
