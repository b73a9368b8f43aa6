"""One script, every strategy: what runs is said by the spec, not by the code.

phalanx submit examples/strategies/fsdp.yaml --follow      # every rank holds a shard of each parameter
phalanx submit examples/strategies/bf16.yaml --follow      # mixed precision, accumulation, clipping
phalanx submit examples/strategies/guards.yaml --follow    # a poisoned batch is skipped on all ranks
phalanx submit examples/strategies/grid.yaml --follow      # tensor parallel layers inside shards
phalanx submit examples/strategies/pipeline.yaml --follow  # pipeline stages
phalanx plan examples/strategies/train.py --world 8xH100   # what each would need
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return x + self.body(self.norm(x))


class Net(nn.Module):
    pipeline_layers = ("stem", "blocks", "head")  # called one after another

    def __init__(self, width=32, depth=3):
        super().__init__()
        self.tp_plan = {"blocks.*.body.0": "colwise", "blocks.*.body.2": "rowwise"}
        self.stem = nn.Linear(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--poison", type=int, default=-1, help="a sample that is not a number")
    args = parser.parse_args()
    run = pt.init(seed=0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(480, 16, generator=generator)
    y = (x @ torch.randn(16, 4, generator=generator)).argmax(1)
    if args.poison >= 0:
        x[args.poison] = float("nan")
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for epoch in run.epochs(args.epochs):
        for inputs, wanted in loader:
            loss = run.pipeline_step(inputs, target=wanted, loss_fn=functional.cross_entropy)
            opt.step()
            opt.zero_grad()
            run.log(loss=loss)
        if run.is_main:
            print(f"epoch {epoch + 1}: loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
