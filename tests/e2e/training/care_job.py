"""The script of the tests of precision, batch and guards: `--init` goes to `pt.init` as it is."""

import argparse
import hashlib
import json
import os
import resource
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt


class Noisy(Dataset):
    """Samples with noise of their own; `poison` is one that is not a number."""

    def __init__(self, size, poison):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 16, generator=generator)
        self.y = torch.randint(0, 4, (size,), generator=generator)
        self.poison = poison

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        x = self.x[at] + torch.randn(16) * 0.1
        return at, x * float("nan") if at == self.poison else x, self.y[at]


class Block(nn.Module):
    def __init__(self, width, norm, dropout):
        super().__init__()
        norms = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        self.layers = nn.Sequential(
            nn.Linear(width, width), norms[norm](width), nn.ReLU(), nn.Dropout(dropout)
        )

    def forward(self, x):
        return x + self.layers(x)


class Net(nn.Module):
    def __init__(self, norm, dropout):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block(32, norm, dropout) for _ in range(2))
        self.last = nn.Linear(32, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def digest(model, opt):
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(full(tensor).numpy().tobytes())
    for state in opt.state_dict()["state"].values():
        for name in sorted(state):
            sha.update(full(torch.as_tensor(state[name])).numpy().tobytes())
    return sha.hexdigest()


def full(tensor):
    """The whole of a tensor that may be sharded over the ranks. Collective."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--init", type=json.loads, default={})
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--norm", default="batch", choices=["batch", "layer"])
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--poison", type=int, default=-1)
    parser.add_argument("--leave-out", type=int, default=-1)
    parser.add_argument("--glitch-at", type=int, default=-1)
    parser.add_argument("--glitches", type=int, default=1)
    parser.add_argument("--jump-at", type=int, default=-1)
    parser.add_argument("--spike", type=int, default=-1)
    parser.add_argument("--switch-to", type=int, default=0)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--slow-ms", type=int, default=0)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--memory-at", type=int, default=-1)
    parser.add_argument("--memory-mb", type=int, default=0)
    parser.add_argument("--backward", choices=["own", "run", "tokens", "sum"], default="own")
    return parser.parse_args()


def limit_memory(spare_mb):
    """From now on this process gets so much more address space and no more."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare_mb * 2**20, resource.RLIM_INFINITY))


def first_generation():
    return os.environ.get("PHALANX_GENERATION") == "0"


def wait_for_ever():
    """The others are in a collective that this rank never enters."""
    threading.Event().wait()


def main():  # noqa: C901, PLR0912, PLR0915 - one script with every fault in its place
    args = arguments()
    if args.switch_to and not first_generation():
        args.init["max_micro_batch"] = args.switch_to
    run = pt.init(seed=3, ddp={"bucket_cap_mb": 0.005}, **args.init)
    model = Net(args.norm, args.dropout)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=10_000)
    loader = DataLoader(Noisy(args.samples, args.poison), batch_size=args.batch_size, shuffle=True)
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    glitched, losses, calls, rates, applied = 0, [], 0, [], []
    opt.register_step_pre_hook(lambda one, *_: applied.append(one.param_groups[0]["lr"]))
    for epoch in run.epochs(args.epochs):
        for at, x, y in loader:
            calls += 1
            step = run.step + 1
            if calls == args.leave_out:
                continue
            if step == args.memory_at and run.rank == 1 and args.memory_mb:
                # At every try of that step: only a smaller micro-batch gets past it.
                limit_memory(args.memory_mb)
            if (
                step == args.raise_at
                and run.rank == 1
                and (first_generation() or not args.switch_to)
            ):
                raise ValueError("this rank had enough")
            if step == args.hang_at and run.rank == 1 and first_generation():
                wait_for_ever()
            loss = functional.cross_entropy(model(x), y)
            if args.memory_at >= 0:
                # 64 megabytes per sample: address space, never touched, so it costs no time.
                torch.empty(len(x), 16_000_000)
            if step == args.glitch_at and run.rank == 1 and glitched < args.glitches:
                # A machine that computes wrongly: other wrong bits each time, in one generation only.
                glitched += first_generation()
                loss = loss * (float("inf"), float("nan"))[glitched - 1] if glitched else loss
            if step == args.jump_at and run.rank == 1 and first_generation():
                loss = loss + loss * 1e4
            if epoch == 2 and args.spike in at.tolist():
                loss = loss + 1e4
            if run.rank == 2:
                time.sleep(args.slow_ms / 1000)  # the fault that is tested for
            if args.backward == "sum":
                loss = loss * len(x)
            if args.backward in ("own", "sum"):
                loss.backward()
            else:
                run.backward(loss, weight=len(x) if args.backward == "tokens" else None)
            before = opt.param_groups[0]["lr"]
            opt.step()
            sched.step()
            rates.append(round(applied[-1] / before, 9) if applied else 0.0)
            opt.zero_grad()
            run.log(loss=loss)
            losses.append(loss.item())
    result = {
        "digest": digest(run.unwrap(model), opt),
        "step": run.step,
        "losses": losses,
        "lr": sched.get_last_lr(),
        "calls": calls,
        "rates": rates,
        "weights": [
            full(p.detach()).double().norm().item() for p in run.unwrap(model).parameters()
        ],
    }
    if run.is_main:
        result["scale"] = run._parts.policies.state_dict()["scale"]
        with open(f"{args.out}.json", "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    sys.exit(main())
