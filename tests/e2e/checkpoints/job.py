"""The script of the checkpoint tests: blocks, a batch norm, a strategy, digests of whole tensors."""

import argparse
import hashlib
import json

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(functional.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.last = nn.Linear(width, 5)

    def forward(self, x):
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def whole(value):
    value = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
    return value.detach().cpu().contiguous()


def digest(model, opt):
    """SHA-256 of every parameter, buffer and optimizer tensor, whoever holds it. Collective."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(whole(tensor).numpy().tobytes())
    for state in opt.state_dict()["state"].values():
        for name in sorted(state):
            sha.update(whole(state[name]).numpy().tobytes())
    return sha.hexdigest()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=192)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--norm", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--clip", type=float, default=None)
    parser.add_argument("--break-cure", default="")
    return parser.parse_args()


def without(cure):
    """Take one cure out of the library: only the negative controls do this."""
    from phalanx.train.parallel import strategies
    from phalanx.train.state import sharding

    if cure == "buffers":
        strategies._broadcast_buffers = lambda model: None
    elif cure == "offsets":
        sharding.region_of = lambda tensor: (tuple(tensor.to_local().shape), (0,) * tensor.dim())


def main():
    args = arguments()
    without(args.break_cure)
    run = pt.init(
        seed=3,
        accumulate=args.accumulate,
        ddp={"bucket_cap_mb": 0.05},
        precision=args.precision,
        clip=args.clip,
    )
    torch.manual_seed(11)
    model = Net(args.width, args.norm)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.02, total_steps=10_000)
    data = torch.Generator().manual_seed(5)
    x, y = torch.randn(args.samples, 16, generator=data), torch.arange(args.samples) % 5
    loader = DataLoader(
        TensorDataset(x, y), batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    loaded = digest(run.unwrap(model), opt)
    if run.is_main:
        with open(f"{args.out}.loaded", "a") as file:
            print(json.dumps({"step": run.step, "digest": loaded}), file=file)
    losses = []
    for _epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad()
            mean = run.all_reduce_mean(loss.item(), weight=len(x))
            if run.is_main:
                losses.append([run.step, mean])
    final = digest(run.unwrap(model), opt)
    if run.is_main:
        with open(f"{args.out}.json", "w") as file:
            json.dump({"digest": final, "step": run.step, "losses": losses}, file)


if __name__ == "__main__":
    main()
