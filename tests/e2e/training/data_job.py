"""The script of the data tests: every kind of loader, one small model, what each rank saw written down."""

import argparse
import json
import random
import time

import torch
from job import digest
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import phalanx.train as pt


class Points(Dataset):
    """Samples that draw; `fingerprint` comes from the command line."""

    def __init__(self, size, fingerprint):
        self.size = size
        if fingerprint:
            self.fingerprint = fingerprint

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        return at, torch.linspace(0, 1, 8) * at / self.size + torch.rand(8) * 0.1, at % 3


class Stream(Points, IterableDataset):
    """The same, one after the other."""

    def __iter__(self):
        for at in range(self.size):
            yield self[at]


class Resumable(Stream):
    """It knows where it is."""

    at = 0

    def __iter__(self):
        while self.at < self.size:
            self.at += 1
            yield self[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Own(Sampler):
    """A sampler with weights of its own; every sample once."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(sorted(range(self.size), key=lambda at: (at % 7, random.random())))


class Buckets(Own):
    """Batches of uneven sizes."""

    def __iter__(self):
        left, width = list(super().__iter__()), 5
        while left:
            yield left[:width]
            left, width = left[width:], 5 + (width + 4) % 11


def loader_of(args):
    context = {"num_workers": args.workers}
    if args.workers:
        context["multiprocessing_context"] = "fork"
    sized = {"batch_size": args.batch_size, **context}
    if args.kind in ("stream", "resumable"):
        kind = Stream if args.kind == "stream" else Resumable
        return DataLoader(kind(args.samples, args.fingerprint), **sized)
    points = Points(args.samples, args.fingerprint)
    if args.kind == "sampler":
        return DataLoader(points, sampler=Own(args.samples), **sized)
    if args.kind == "batches":
        return DataLoader(points, batch_sampler=Buckets(args.samples), **context)
    return DataLoader(points, shuffle=True, **sized)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--kind", default="map")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--fingerprint", default="")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--double", action="store_true")
    args = parser.parse_args()
    run = pt.init(seed=3, accumulate=args.accumulate)
    if args.double:
        torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, opt, loader = run.prepare(model, opt, loader_of(args))
    seen = open(f"{args.out}.r{run.rank}.seen", "a")  # noqa: SIM115
    sizes = []
    for epoch in run.epochs(args.epochs):
        for at, x, y in loader:
            x = x.to(torch.get_default_dtype())
            if run.rank == args.slow_rank:
                work(len(x))
            functional.cross_entropy(model(x), y).backward()
            opt.step()
            opt.zero_grad()
            sizes.append(len(x))
            print(epoch, run.step, at.tolist(), "-", file=seen, flush=True)
    seen.close()
    weights = [value for p in run.unwrap(model).parameters() for value in p.flatten().tolist()]
    with open(f"{args.out}.r{run.rank}.json", "w") as file:
        json.dump({"sizes": sizes, "weights": weights}, file)
    if run.is_main:
        with open(f"{args.out}.json", "w") as file:
            json.dump({"digest": digest(run.unwrap(model), opt), "step": run.step}, file)


def work(num_samples):
    """A slow device: time that grows with the samples it is given."""
    until = time.perf_counter() + 0.004 * num_samples
    while time.perf_counter() < until:
        torch.rand(1000).sum()


if __name__ == "__main__":
    main()
