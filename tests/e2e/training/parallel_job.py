"""A small transformer-like model, for layouts with tensor parallel layers."""

import argparse
import hashlib
import json

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt

PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
SEQUENCE = {
    "blocks.*.up": "colwise", "blocks.*.down": "rowwise_sequence", "blocks.*.norm": "sequence",
    "blocks.0": "split_sequence", "head": "gather_sequence",
}  # fmt: skip


class Sequences(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 8, 16, generator=generator)
        self.y = torch.randint(0, 4, (size,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return at, self.x[at], self.y[at]


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x):
        return x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dropout) for _ in range(2)])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(1)


def whole(tensor):
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--plan", default="plain", choices=["plain", "sequence", "none"])
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    plan = {"plain": PLAN, "sequence": SEQUENCE, "none": {}}[args.plan]
    run = pt.init(
        seed=3, accumulate=args.accumulate, strategy=args.strategy, tp_plan=plan, clip=0.5,
        precision=args.precision,
    )  # fmt: skip
    model = Net(args.dropout)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Sequences(96), batch_size=4, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    with open(f"{args.out}.r{run.rank}.seen", "a") as seen:
        for epoch in run.epochs(args.epochs):
            for at, x, y in loader:
                loss = functional.cross_entropy(model(x), y)
                run.backward(loss)
                opt.step()
                opt.zero_grad()
                run.log(loss=loss)
                print(epoch, run.step, at.tolist(), file=seen, flush=True)
    sha = hashlib.sha256()
    weights = {}
    for name, tensor in run.unwrap(model).state_dict().items():
        weights[name] = whole(tensor).flatten().tolist()
        sha.update(whole(tensor).numpy().tobytes())
    for state in opt.state_dict()["state"].values():
        for name in sorted(state):
            sha.update(whole(torch.as_tensor(state[name])).numpy().tobytes())
    held = sum(
        getattr(one, "to_local", lambda one=one: one)().numel() for one in model.parameters()
    )
    if run.is_main:
        result = {"digest": sha.hexdigest(), "step": run.step, "weights": weights, "held": held}
        with open(f"{args.out}.json", "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
