"""Handwritten digits that three sites may not share: each holds other digits, all get one model.

phalanx submit examples/federated/coordinator.yaml
phalanx submit examples/federated/sites.yaml --follow

The coordinator keeps what it needs beside its checkpoints; kill it, or a site, and the rounds go on.
Three ranks of one job stand for the sites here. In earnest each is a job, or a bare Python process, of its
own, somewhere else: all it needs is the coordinator's address and a token of its own.
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from phalanx.train import federated


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits():
    bunch = load_digits()
    x = torch.tensor(bunch.data / 16.0, dtype=torch.float32)
    y = torch.tensor(bunch.target)
    held_out = torch.arange(len(y)) % 5 == 0
    return (x[~held_out], y[~held_out]), (x[held_out], y[held_out])


def of_site(x, y, number, num_sites):
    """Mostly the digits of this site, and a few of all others."""
    own = (y % num_sites == number) | (torch.arange(len(y)) % 10 == number)
    return TensorDataset(x[own], y[own])


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def coordinate(args, token):
    _, held_out = digits()
    model = net()

    def told(number, metrics):
        said = f"round {number}: {metrics['sites']:.0f} sites, loss {metrics['loss']:.4f}"
        print(f"{said}, accuracy {accuracy(model, *held_out):.4f}", flush=True)

    coordinator = federated.Coordinator(
        model, num_rounds=args.rounds, token=token, min_sites=args.min_sites, round_s=args.round_s,
        directory=args.directory, on_round=told,
    )  # fmt: skip
    coordinator.serve("127.0.0.1", args.port, ready=lambda port: print(f"port {port}", flush=True))
    print(f"done: accuracy {accuracy(model, *held_out):.4f}", flush=True)


def take_part(args, token, number):
    train_set, _ = digits()
    data = of_site(*train_set, number, args.sites)
    model = net()
    name = f"site-{number}"
    # In earnest, a site is given its own token; the coordinator's never leaves its place.
    own = federated.site_token(token, name)
    site = federated.Site(args.address, name=name, token=own, prox=args.prox)
    for turn in site.rounds(model):
        torch.manual_seed(1000 * turn + number)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        total = 0.0
        for _ in range(2):
            for x, y in DataLoader(data, batch_size=32, shuffle=True):
                loss = functional.cross_entropy(model(x), y)
                opt.zero_grad()
                (loss + site.proximal()).backward()
                opt.step()
                total += float(loss) * len(x) / 2
        site.submit(count=len(data), loss=total / len(data))
    print(f"site {number} has the final model", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["coordinator", "site"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--min-sites", type=int, default=2)
    parser.add_argument("--round-s", type=float, default=60.0, help="a round lasts no longer")
    parser.add_argument("--port", type=int, default=9471)
    parser.add_argument("--address", default="127.0.0.1:9471")
    parser.add_argument("--prox", type=float, default=0.01, help="FedProx; 0 is FedAvg")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--number", type=int, default=int(os.environ.get("RANK", "0")))
    args = parser.parse_args()
    token = os.environ.get("FEDERATION_TOKEN", "example")
    if args.role == "coordinator":
        coordinate(args, token)
    else:
        take_part(args, token, args.number)


if __name__ == "__main__":
    main()
