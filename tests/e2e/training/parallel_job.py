"""A small transformer-like model, for layouts with tensor parallel layers."""

import argparse
import hashlib
import json

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt
from phalanx.train.numerics import gradients

PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
SEQUENCE = {
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise_sequence",
    "blocks.*.norm": "sequence",
    "blocks.0": "split_sequence",
    "head": "gather_sequence",
}
PLANS = {"plain": PLAN, "sequence": SEQUENCE, "none": {}}


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
    pipeline_layers = ("blocks", "head")

    def __init__(self, dropout, depth):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dropout) for _ in range(depth)])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(scores, wanted):
    return functional.cross_entropy(scores.mean(1), wanted)


def whole(tensor):
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def held_by(model, opt):
    """What a rank holds: of a pipeline its own stages; ranks of a stage put whole tensors together."""
    weights, digests = {}, {}
    for name, tensor in model.state_dict().items():
        if not tensor.is_meta:
            weights[name] = whole(tensor).flatten().tolist()
            digests[name] = hashlib.sha256(whole(tensor).numpy().tobytes()).hexdigest()
    for number, state in opt.state_dict()["state"].items():
        for name in sorted(state):
            raw = whole(torch.as_tensor(state[name])).numpy().tobytes()
            digests[f"{number}.{name}"] = hashlib.sha256(raw).hexdigest()
    held = sum(
        getattr(one, "to_local", lambda one=one: one)().numel()
        for one in model.parameters()
        if not one.is_meta
    )
    return {"weights": weights, "digests": digests, "held": held}


def warm_up(model, opt, data):
    """Some steps without the library, as a script makes that goes on from files of its own."""
    for _ in range(3):
        opt.zero_grad()
        loss_of(model(data.x[:8]), data.y[:8]).backward()
        opt.step()
    opt.zero_grad()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--plan", default="plain", choices=["plain", "sequence", "none"])
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=None)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--poison", type=int, default=-1)
    parser.add_argument("--device", default="cpu", help="where the model is made: cpu or meta")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--warm-up", action="store_true", help="the optimizer knows something")
    parser.add_argument("--fault", choices=["norm-of-one-stage", "state-left-behind"])
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_default_dtype(getattr(torch, args.dtype))
    run = pt.init(
        seed=3,
        accumulate=args.accumulate,
        strategy=args.strategy,
        tp_plan=PLANS[args.plan],
        clip=0.5,
        precision=args.precision,
        pipeline_schedule=args.schedule,
        micro_batches=args.micro_batches,
        on_non_finite="skip" if args.poison >= 0 else "off",
    )
    with torch.device(args.device):
        model = Net(args.dropout, args.depth)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Sequences(96)
    if args.poison >= 0:
        data.x[args.poison] = float("nan")
    loader = DataLoader(data, batch_size=args.batch, shuffle=True)
    if args.warm_up:
        warm_up(model, opt, data)
    if args.fault == "state-left-behind":
        opt.state.clear()
    model, opt, loader = run.prepare(model, opt, loader)
    if args.fault == "norm-of-one-stage":
        run._parts.strategy.norm = gradients.gradient_norm
    staged = "pp" in args.strategy
    with open(f"{args.out}.r{run.rank}.seen", "a") as seen:
        for epoch in run.epochs(args.epochs):
            for at, x, y in loader:
                if staged:
                    loss = run.pipeline_step(x, target=y, loss_fn=loss_of)
                else:
                    loss = loss_of(model(x), y)
                    run.backward(loss)
                opt.step()
                opt.zero_grad()
                run.log(loss=loss)
                print(epoch, run.step, at.tolist(), file=seen, flush=True)
    with torch.no_grad():
        outputs = model(data.x[:8]).mean(1).tolist() if staged else []
    result = {**held_by(run.unwrap(model), opt), "step": run.step, "loss": float(loss)}
    with open(f"{args.out}.r{run.rank}.json", "w") as file:
        json.dump({**result, "outputs": outputs}, file)


if __name__ == "__main__":
    main()
